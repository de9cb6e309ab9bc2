// A load on NATS JetStream by its own client for Java: what PerfTest's `-c WINDOW -q PREFETCH -f persistent` is for AMQP.
//
//     java -cp 'jnats/*' Load.java URL QUEUES CONNECTIONS CHANNELS CONSUMING WINDOW SIZE SECONDS WARM_UP
//
// A stream in a file keeps messages until they are acknowledged, with a subject for each queue. CONNECTIONS publish to
// each, on CHANNELS each, with WINDOW publishes under way; CONSUMING connections share its messages, and acknowledge
// each. Prints messages a second that were acknowledged to publishers, and that were consumed, and the 99th percentile
// of the milliseconds from a publish to its delivery.
import io.nats.client.*;
import io.nats.client.api.*;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;

public class Load {
    static final LongAdder confirmed = new LongAdder(), consumed = new LongAdder();
    static final ConcurrentLinkedQueue<Long> delays = new ConcurrentLinkedQueue<>();
    static volatile boolean isOver, isCounting;

    public static void main(String[] arguments) throws Exception {
        String url = arguments[0];
        int[] numbers = Arrays.stream(arguments, 1, arguments.length).mapToInt(Integer::parseInt).toArray();
        int queues = numbers[0], connections = numbers[1], channels = numbers[2], consuming = numbers[3];
        int window = numbers[4], size = numbers[5], seconds = numbers[6], warmUp = numbers[7];
        Connection control = Nats.connect(url);
        JetStreamManagement management = control.jetStreamManagement();
        String stream = "bench" + System.nanoTime();
        management.addStream(StreamConfiguration.builder().name(stream).subjects(stream + ".*")
            .retentionPolicy(RetentionPolicy.WorkQueue).storageType(StorageType.File).build());
        List<Connection> open = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int queue = 0; queue < queues; queue++) {
            String subject = stream + "." + queue;
            for (int each = 0; each < consuming; each++) {
                Connection connection = Nats.connect(url);
                open.add(connection);
                ConsumerConfiguration wanted = ConsumerConfiguration.builder()
                    .maxAckPending(200L * channels * consuming).build();
                connection.jetStream().subscribe(subject, "group" + queue, connection.createDispatcher(), message -> {
                    if (isCounting) {
                        consumed.increment();
                        delays.add(System.nanoTime() - ByteBuffer.wrap(message.getData()).getLong());
                    }
                    message.ack();
                }, false, PushSubscribeOptions.builder().durable("durable" + queue).configuration(wanted).build());
            }
        }
        for (int queue = 0; queue < queues; queue++) {
            String subject = stream + "." + queue;
            for (int each = 0; each < connections; each++) {
                Connection connection = Nats.connect(url);
                open.add(connection);
                JetStream context = connection.jetStream();
                for (int channel = 0; channel < channels; channel++) {
                    threads.add(new Thread(() -> publish(context, subject, window, size)));
                }
            }
        }
        threads.forEach(Thread::start);
        Thread.sleep(1000L * warmUp);
        isCounting = true;
        long began = System.nanoTime();
        Thread.sleep(1000L * (seconds - warmUp));
        isCounting = false;
        double took = (System.nanoTime() - began) / 1e9;
        isOver = true;
        for (Thread each : threads) each.join(5000);
        long[] sorted = delays.stream().mapToLong(Long::longValue).sorted().toArray();
        double p99 = sorted.length == 0 ? 0 : sorted[(int) (sorted.length * 0.99)] / 1e6;
        System.out.printf(Locale.ROOT, "%.0f %.0f %.2f%n", confirmed.sum() / took, consumed.sum() / took, p99);
        management.deleteStream(stream);
        for (Connection each : open) each.close();
        control.close();
        System.exit(0);
    }

    static void publish(JetStream context, String subject, int window, int size) {
        Semaphore free = new Semaphore(window);
        try {
            while (!isOver) {
                free.acquire();
                byte[] body = new byte[size];
                ByteBuffer.wrap(body).putLong(System.nanoTime());
                context.publishAsync(subject, body).whenComplete((found, error) -> {
                    free.release();
                    if (isCounting && error == null) confirmed.increment();
                });
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}
