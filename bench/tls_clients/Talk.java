import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultSaslConfig;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import java.io.FileInputStream;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.Arrays;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/**
 * A round trip with RabbitMQ's Java client over TLS: java Talk.java HOST PORT CA PKCS12, the last one empty for none.
 * With a certificate it logs in by it (EXTERNAL). Prints "done" when every message was confirmed and came back.
 */
class Talk {
    private static final char[] PASSWORD = "changeit".toCharArray();

    public static void main(String[] words) throws Exception {
        byte[] large = new byte[60_000];
        Arrays.fill(large, (byte) 't');
        byte[][] bodies = {"one".getBytes(), large, "three".getBytes()};
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost(words[0]);
        factory.setPort(Integer.parseInt(words[1]));
        factory.setAutomaticRecoveryEnabled(false);
        factory.useSslProtocol(context(Path.of(words[2]), words[3]));
        factory.enableHostnameVerification();
        if (!words[3].isEmpty()) factory.setSaslConfig(DefaultSaslConfig.EXTERNAL);
        try (Connection connection = factory.newConnection(); Channel channel = connection.createChannel()) {
            String queue = channel.queueDeclare().getQueue();
            channel.confirmSelect();
            for (byte[] body : bodies) channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, body);
            channel.waitForConfirmsOrDie(30_000);
            for (byte[] body : bodies) {
                GetResponse response = channel.basicGet(queue, false);
                if (response == null || !Arrays.equals(body, response.getBody())) throw new Exception("another message");
                channel.basicAck(response.getEnvelope().getDeliveryTag(), false);
            }
        }
        System.out.println("done");
    }

    private static SSLContext context(Path ca, String identity) throws Exception {
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        try (InputStream stream = Files.newInputStream(ca)) {
            trusted.setCertificateEntry("ca", CertificateFactory.getInstance("X.509").generateCertificate(stream));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance("PKIX");
        trust.init(trusted);
        KeyManager[] keys = null;
        if (!identity.isEmpty()) {
            KeyStore store = KeyStore.getInstance("PKCS12");
            try (InputStream stream = new FileInputStream(identity)) {
                store.load(stream, PASSWORD);
            }
            KeyManagerFactory factory = KeyManagerFactory.getInstance("PKIX");
            factory.init(store, PASSWORD);
            keys = factory.getKeyManagers();
        }
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys, trust.getTrustManagers(), null);
        return context;
    }
}
