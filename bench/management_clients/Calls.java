import com.fasterxml.jackson.annotation.JsonAutoDetect;
import com.fasterxml.jackson.annotation.PropertyAccessor;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import com.rabbitmq.http.client.Client;
import com.rabbitmq.http.client.ClientParameters;
import com.rabbitmq.http.client.GetAckMode;
import com.rabbitmq.http.client.GetEncoding;
import com.rabbitmq.http.client.HttpClientException;
import com.rabbitmq.http.client.HttpServerException;
import com.rabbitmq.http.client.domain.*;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;

/** Calls the methods of RabbitMQ's Java client for the API, and prints what each returns or throws, as JSON. */
public class Calls {
  private static final Map<String, Object> results = new TreeMap<>();

  private static final ObjectMapper mapper = new ObjectMapper()
      .setVisibility(PropertyAccessor.ALL, JsonAutoDetect.Visibility.NONE)
      .setVisibility(PropertyAccessor.FIELD, JsonAutoDetect.Visibility.ANY)
      .disable(SerializationFeature.FAIL_ON_EMPTY_BEANS);

  private interface Change {
    void run() throws Exception;
  }

  /** Keeps what a method returns, or the status or the exception that it ends with. */
  private static void read(String name, Callable<Object> method) {
    Object result;
    try {
      result = mapper.valueToTree(method.call());
    } catch (HttpClientException error) {
      result = "status " + error.status();
    } catch (HttpServerException error) {
      result = "status " + error.status();
    } catch (Exception error) {
      result = "threw " + error;
    }
    results.put(name, result);
  }

  private static void change(String name, Change method) {
    read(name, () -> {
      method.run();
      return "done";
    });
  }

  public static void main(String[] arguments) throws Exception {
    Client client = new Client(
        new ClientParameters().url("http://127.0.0.1:15672/api/").username("guest").password("guest"));
    reads(client, arguments[0]);
    changes(client, "java/client");
    plugins(client, arguments[0]);
    connections(client);
    System.out.println(mapper.writeValueAsString(results));
  }

  private static QueryParameters page(String pattern) {
    return new QueryParameters().name(pattern, true).pagination().pageSize(2).query().columns().sort("name").query();
  }

  private static void reads(Client client, String vhost) {
    DetailsParameters ranges = new DetailsParameters().messageRates(60, 5).lengths(60, 5);
    String node = client.getNodes().get(0).getName();
    String connection = client.getConnections().get(0).getName();
    String channel = client.getChannels().get(0).getName();
    read("getOverview", client::getOverview);
    read("whoAmI", client::whoAmI);
    read("getNodes", client::getNodes);
    read("getNode", () -> client.getNode(node));
    read("getConnections", client::getConnections);
    read("getConnections(page)", () -> client.getConnections(new QueryParameters().pagination().pageSize(10).query()));
    read("getConnection", () -> client.getConnection(connection));
    read("getConnection(unknown)", () -> client.getConnection("unknown"));
    read("getConnectionsOfUser", () -> client.getConnectionsOfUser("guest"));
    read("getConsumers", client::getConsumers);
    read("getConsumers(vhost)", () -> client.getConsumers(vhost));
    read("getChannels", client::getChannels);
    read("getChannels(page)", () -> client.getChannels(new QueryParameters().pagination().pageSize(10).query()));
    read("getChannels(connection)", () -> client.getChannels(connection));
    read("getChannel", () -> client.getChannel(channel));
    read("getVhosts", client::getVhosts);
    read("getVhost", () -> client.getVhost(vhost));
    read("getVhost(unknown)", () -> client.getVhost("unknown"));
    read("getPermissions", () -> client.getPermissions());
    read("getPermissionsIn", () -> client.getPermissionsIn(vhost));
    read("getPermissionsIn(unknown)", () -> client.getPermissionsIn("unknown"));
    read("getPermissionsOf", () -> client.getPermissionsOf("guest"));
    read("getPermissions(vhost, user)", () -> client.getPermissions(vhost, "guest"));
    read("getTopicPermissions", () -> client.getTopicPermissions());
    read("getTopicPermissionsIn", () -> client.getTopicPermissionsIn(vhost));
    read("getTopicPermissionsOf", () -> client.getTopicPermissionsOf("guest"));
    read("getTopicPermissions(vhost, user)", () -> client.getTopicPermissions(vhost, "guest"));
    read("getExchanges", () -> client.getExchanges());
    read("getExchanges(page)", () -> client.getExchanges(page("^(orders|audit)")));
    read("getExchanges(vhost)", () -> client.getExchanges(vhost));
    read("getExchanges(vhost, page)", () -> client.getExchanges(vhost, page("^amq")));
    read("getExchange", () -> client.getExchange(vhost, "orders"));
    read("getExchange(unknown)", () -> client.getExchange(vhost, "unknown"));
    read("getQueues", () -> client.getQueues());
    read("getQueues(ranges)", () -> client.getQueues(ranges));
    read("getQueues(page)", () -> client.getQueues(page("^orders")));
    read("getQueues(vhost)", () -> client.getQueues(vhost));
    read("getQueues(vhost, ranges)", () -> client.getQueues(vhost, ranges));
    read("getQueues(vhost, page)", () -> client.getQueues(vhost, page("^orders")));
    read("getQueue", () -> client.getQueue(vhost, "orders.new"));
    read("getQueue(ranges)", () -> client.getQueue(vhost, "orders.new", ranges));
    read("getQueue(encoded)", () -> client.getQueue(vhost, "a/b"));
    read("getQueue(unknown)", () -> client.getQueue(vhost, "unknown"));
    read("getUsers", client::getUsers);
    read("getUser", () -> client.getUser("policymaker"));
    read("getUser(unknown)", () -> client.getUser("unknown"));
    read("getPolicies", () -> client.getPolicies());
    read("getPolicies(vhost)", () -> client.getPolicies(vhost));
    read("getOperatorPolicies", () -> client.getOperatorPolicies());
    read("getOperatorPolicies(vhost)", () -> client.getOperatorPolicies(vhost));
    read("getBindings", () -> client.getBindings());
    read("getBindings(vhost)", () -> client.getBindings(vhost));
    read("getBindingsBySource", () -> client.getBindingsBySource(vhost, "orders"));
    read("getBindingsBySource(default)", () -> client.getBindingsBySource(vhost, ""));
    read("getExchangeBindingsByDestination", () -> client.getExchangeBindingsByDestination(vhost, "audit"));
    read("getQueueBindings", () -> client.getQueueBindings(vhost, "a/b"));
    read("getQueueBindingsBetween", () -> client.getQueueBindingsBetween(vhost, "orders", "orders.new"));
    read("getExchangeBindingsBetween", () -> client.getExchangeBindingsBetween(vhost, "orders", "audit"));
    read("getClusterName", client::getClusterName);
    read("getExtensions", client::getExtensions);
    read("getDefinitions", client::getDefinitions);
    read("getVhostLimits", () -> client.getVhostLimits());
    read("getVhostLimits(vhost)", () -> client.getVhostLimits(vhost));
    read("alivenessTest", () -> client.alivenessTest(vhost));  // declares a queue, so that it comes last
  }

  private static void changes(Client client, String vhost) {
    change("createVhost", () -> client.createVhost(vhost));
    change("createVhost(tracing, description, tags)", () -> client.createVhost(vhost, false, "shown", "one", "two"));
    read("createVhost: read", () -> client.getVhost(vhost));
    change("createUser", () -> client.createUser("java", "secret".toCharArray(), List.of("monitoring")));
    change("updateUser", () -> client.updateUser("java", null, List.of("management", "own")));
    read("updateUser: read", () -> client.getUser("java"));
    change("createUserWithPasswordHash", () -> client.createUserWithPasswordHash(
        "hash", "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR".toCharArray(), List.of("administrator")));
    read("createUserWithPasswordHash: read", () -> client.getUser("hash"));
    change("updatePermissions", () -> client.updatePermissions(vhost, "java", new UserPermissions("^r", "^w", "^c")));
    read("updatePermissions: read", () -> client.getPermissionsOf("java"));
    change("clearPermissions", () -> client.clearPermissions(vhost, "java"));
    read("clearPermissions: read", () -> client.getPermissions(vhost, "java"));
    change("updateTopicPermissions",
        () -> client.updateTopicPermissions(vhost, "java", new TopicPermissions("amq.topic", "^r", "^w")));
    read("updateTopicPermissions: read", () -> client.getTopicPermissions(vhost, "java"));
    change("clearTopicPermissions", () -> client.clearTopicPermissions(vhost, "java"));
    change("declareExchange", () -> client.declareExchange(vhost, "from", new ExchangeInfo("direct", true, false)));
    change("declareExchange(arguments)", () -> client.declareExchange(
        vhost, "to", new ExchangeInfo("headers", false, true, true, Map.of("alternate-exchange", "from"))));
    read("declareExchange: read", () -> client.getExchange(vhost, "to"));
    change("declareExchange(other type)", () -> client.declareExchange(vhost, "from", new ExchangeInfo("topic", true, false)));
    change("declareQueue", () -> client.declareQueue(vhost, "q/1", new QueueInfo(true, false, false)));
    change("declareQueue(arguments)", () -> client.declareQueue(
        vhost, "q2", new QueueInfo(false, false, true, Map.of("x-message-ttl", 60000, "x-max-length", 7))));
    read("declareQueue: read", () -> client.getQueue(vhost, "q2").getArguments());
    change("bindQueue", () -> client.bindQueue(vhost, "q/1", "from", "key"));
    change("bindQueue(arguments)", () -> client.bindQueue(vhost, "q2", "to", "", Map.of("x-match", "all", "a", 1)));
    change("bindExchange", () -> client.bindExchange(vhost, "to", "from", ""));
    change("bindExchange(arguments)", () -> client.bindExchange(vhost, "to", "from", "k", Map.of("a", "b")));
    read("bind: read", () -> client.getBindings(vhost));
    change("bindQueue(unknown)", () -> client.bindQueue(vhost, "unknown", "from", "key"));
    read("publish", () -> client.publish(vhost, "from", "key", new OutboundMessage()
        .payload("text").utf8Encoded().properties(Map.of("delivery_mode", 2, "headers", Map.of("h", 1)))));
    read("publish(base64)", () -> client.publish(vhost, "from", "key", new OutboundMessage().payload("AAEC").base64Encoded()));
    read("publish(unroutable)", () -> client.publish(vhost, "from", "other", new OutboundMessage().payload("x")));
    read("get(requeue)", () -> client.get(vhost, "q/1", 5, GetAckMode.NACK_REQUEUE_TRUE, GetEncoding.AUTO, 3));
    read("get(base64)", () -> client.get(vhost, "q/1", 1, GetAckMode.REJECT_REQUEUE_TRUE, GetEncoding.BASE64));
    read("get", () -> client.get(vhost, "q/1"));
    change("purgeQueue", () -> client.purgeQueue(vhost, "q/1"));
    read("purgeQueue: read", () -> client.get(vhost, "q/1"));
    change("unbindQueue", () -> client.unbindQueue(vhost, "q/1", "from", "key"));
    change("unbindExchange", () -> client.unbindExchange(vhost, "to", "from", ""));
    change("deleteQueue(if unused, if empty)",
        () -> client.deleteQueue(vhost, "q2", new DeleteQueueParameters(true, true)));
    change("deleteQueue", () -> client.deleteQueue(vhost, "q/1"));
    change("deleteQueue(unknown)", () -> client.deleteQueue(vhost, "q/1"));
    change("deleteExchange", () -> client.deleteExchange(vhost, "to"));
    PolicyInfo policy = new PolicyInfo("^q", 2, "queues", Map.of("max-length", 9));
    change("declarePolicy", () -> client.declarePolicy(vhost, "p", policy));
    change("declareOperatorPolicy", () -> client.declareOperatorPolicy(vhost, "o", policy));
    read("declarePolicy: read", () -> client.getPolicies(vhost));
    read("declareOperatorPolicy: read", () -> client.getOperatorPolicies(vhost));
    change("declarePolicy(invalid)",
        () -> client.declarePolicy(vhost, "p", new PolicyInfo("(", 2, "queues", Map.of("max-length", "x"))));
    change("deletePolicy", () -> client.deletePolicy(vhost, "p"));
    change("deleteOperatorPolicy", () -> client.deleteOperatorPolicy(vhost, "o"));
    change("limitMaxNumberOfConnections", () -> client.limitMaxNumberOfConnections(vhost, 5));
    change("limitMaxNumberOfQueues", () -> client.limitMaxNumberOfQueues(vhost, 0));
    read("limit: read", () -> client.getVhostLimits(vhost));
    change("limit: declareQueue", () -> client.declareQueue(vhost, "q3", new QueueInfo(true, false, false)));
    change("clearMaxConnectionsLimit", () -> client.clearMaxConnectionsLimit(vhost));
    change("clearMaxQueuesLimit", () -> client.clearMaxQueuesLimit(vhost));
    read("clear: read", () -> client.getVhostLimits(vhost));
    change("setClusterName", () -> client.setClusterName("named"));
    read("setClusterName: read", client::getClusterName);
    change("setMqttPortToVhostMapping", () -> client.setMqttPortToVhostMapping(Map.of(1883, vhost)));
    read("getMqttPortToVhostMapping", client::getMqttPortToVhostMapping);
    change("deleteMqttPortToVhostMapping", client::deleteMqttPortToVhostMapping);
    change("deleteUser", () -> client.deleteUser("java"));
    change("deleteUser(hash)", () -> client.deleteUser("hash"));
    change("deleteVhost", () -> client.deleteVhost(vhost));
    change("deleteVhost(unknown)", () -> client.deleteVhost(vhost));
  }

  private static void plugins(Client client, String vhost) {
    ShovelInfo shovel = new ShovelInfo("s", new ShovelDetails("amqp://", "amqp://", 30, true, null));
    change("declareShovel", () -> client.declareShovel(vhost, shovel));
    read("getShovels", () -> client.getShovels());
    read("getShovels(vhost)", () -> client.getShovels(vhost));
    read("getShovelsStatus", () -> client.getShovelsStatus());
    read("getShovelsStatus(vhost)", () -> client.getShovelsStatus(vhost));
    change("deleteShovel", () -> client.deleteShovel(vhost, "s"));
    change("declareUpstream", () -> client.declareUpstream(vhost, "u", new UpstreamDetails().setUri("amqp://")));
    read("getUpstreams", () -> client.getUpstreams());
    read("getUpstreams(vhost)", () -> client.getUpstreams(vhost));
    change("deleteUpstream", () -> client.deleteUpstream(vhost, "u"));
    UpstreamSetDetails details = new UpstreamSetDetails();
    details.setUpstream("u");
    change("declareUpstreamSet", () -> client.declareUpstreamSet(vhost, "us", List.of(details)));
    read("getUpstreamSets", () -> client.getUpstreamSets());
    read("getUpstreamSets(vhost)", () -> client.getUpstreamSets(vhost));
    change("deleteUpstreamSet", () -> client.deleteUpstreamSet(vhost, "us"));
  }

  private static void connections(Client client) {
    List<ConnectionInfo> open = client.getConnections();
    change("closeConnection", () -> client.closeConnection(open.get(0).getName()));
    change("closeConnection(reason)", () -> client.closeConnection(open.get(1).getName(), "because"));
    change("closeConnection(unknown)", () -> client.closeConnection("unknown"));
    change("closeAllConnectionsOfUser", () -> client.closeAllConnectionsOfUser("guest"));
  }
}
