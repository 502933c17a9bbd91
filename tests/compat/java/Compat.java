import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.api.CompressionType;

/** Drives a Pulsar service with the official Java client and checks what comes back. See ../README.md. */
public final class Compat {
    private interface Case {
        /** Returns a note for the result line, or null. */
        String run(Service service) throws Exception;
    }

    private interface Silent {
        void run(Service service) throws Exception;
    }

    private static final Map<String, Case> CASES = new LinkedHashMap<>();
    /** Only when named: they want a broker that authorizes, and a role of their own. */
    private static final List<String> ROLE_CASES = List.of("produce_only", "consume_only", "stranger");

    static {
        add("produce_consume", Cases::produceConsume);
        add("partitioned", Cases::partitioned);
        add("exclusive", Cases::exclusive);
        add("shared", Cases::shared);
        add("failover", Cases::failover);
        add("key_shared", Cases::keyShared);
        add("batched", Cases::batched);
        add("unbatched", Cases::unbatched);
        for (CompressionType codec : CompressionType.values()) {
            add("compression_" + codec.name().toLowerCase(), service -> Cases.compressed(service, codec));
        }
        add("chunked_20mb", Cases::chunked);
        add("reader", Cases::reader);
        add("seek_by_id", Cases::seekById);
        add("seek_by_time", Cases::seekByTime);
        add("pattern", Cases::pattern);
        CASES.put("disturbance", Disturbance::run);
        CASES.put("produce_only", Roles::produceOnly);
        CASES.put("consume_only", Roles::consumeOnly);
        CASES.put("stranger", Roles::stranger);
    }

    private Compat() {
    }

    private static void add(String name, Silent body) {
        CASES.put(name, service -> {
            body.run(service);
            return null;
        });
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = new LinkedHashMap<>(Map.of("--namespace", "public/default",
                "--run", String.valueOf(System.currentTimeMillis())));
        List<String> names = new ArrayList<>();
        for (int index = 0; index < arguments.length; index++) {
            if (arguments[index].startsWith("--")) {
                options.put(arguments[index], arguments[++index]);
            } else {
                names.add(arguments[index]);
            }
        }
        if (!options.containsKey("--service-url") || !options.containsKey("--admin-url")
                || !CASES.keySet().containsAll(names)) {
            System.err.println("usage: Compat --service-url URL --admin-url URL [--namespace T/N] [--run ID] [CASE ...]\n"
                    + "cases: " + String.join(" ", CASES.keySet()));
            System.exit(2);
        }
        if (names.isEmpty()) {
            names.addAll(CASES.keySet());
            names.removeAll(ROLE_CASES);
        }
        int failed = 0;
        try (Service service = new Service(options)) {
            for (String name : names) {
                failed += runCase(name, service) ? 0 : 1;
            }
        }
        System.out.println((names.size() - failed) + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }

    private static boolean runCase(String name, Service service) {
        long began = System.nanoTime();
        try {
            String note = CASES.get(name).run(service);
            System.out.printf("PASS %s (%.1f s)%s%n", name, (System.nanoTime() - began) / 1e9,
                    note == null ? "" : " " + note);
            return true;
        } catch (Exception | AssertionError problem) {
            System.out.println("FAIL " + name + ": " + problem);
            return false;
        }
    }
}
