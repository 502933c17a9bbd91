import com.google.protobuf.ByteString;
import com.google.protobuf.Descriptors;
import com.google.protobuf.Message;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.bookkeeper.mledger.proto.MLDataFormats;
import org.apache.pulsar.common.api.proto.BaseCommand;

/**
 * Holds encoded messages against Pulsar's own classes. Driven by tests/proto_java.rs.
 *
 * <p>Reads lines "NAME HEX" from the file given as argument and prints, for each, "back NAME HEX": the message decoded
 * and encoded again; a message in which a field is not set ends the program with an error, unless the line begins with "partial". Then prints, for every
 * message that Pulsar has, "filled NAME HEX" with all fields set here, and "field ..." and "value ..." lines that
 * describe all messages and enums.
 *
 * <p>The file may also have lines "unsigned NAME NUMBER": fields that are unsigned and of 32 bits, which LightProto's
 * classes do not show. They write such a value above the signed range as a negative number, in ten bytes, where all
 * other libraries write five; no field has such values, so none are used here.
 *
 * <p>NAME is "api." and the name of a class made by LightProto (commands, metadata, markers), or "ml." and that of a
 * class made by protoc (managed ledger).
 */
public final class ProtoCheck {
    private static final String API_PACKAGE = "org.apache.pulsar.common.api.proto";
    private static final Set<String> UNSIGNED = new HashSet<>();

    public static void main(String[] args) throws Exception {
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            String[] words = line.split(" ", -1);
            if (words[0].equals("unsigned")) {
                UNSIGNED.add(words[1] + " " + words[2]);
                continue;
            }
            boolean partial = words[0].equals("partial");
            String name = words[partial ? 1 : 0];
            byte[] bytes = HexFormat.of().parseHex(words[partial ? 2 : 1]);
            try {
                byte[] back = name.startsWith("ml.") ? ml(name, bytes, partial) : api(name, bytes, partial);
                print("back", (partial ? "partial " : "") + name, back);
            } catch (Exception e) {
                throw new IllegalStateException(line, e);
            }
        }
        for (Class<?> type : apiClasses()) {
            if (type.isEnum()) {
                describeEnum(type);
            } else {
                describe(type);
                for (boolean extreme : new boolean[] {false, true}) {
                    fillAndPrint(type, extreme);
                }
            }
        }
        for (Descriptors.Descriptor type : MLDataFormats.getDescriptor().getMessageTypes()) {
            mlMessage(type);
        }
        for (Descriptors.EnumDescriptor type : MLDataFormats.getDescriptor().getEnumTypes()) {
            for (Descriptors.EnumValueDescriptor value : type.getValues()) {
                System.out.println("value ml." + type.getName() + " " + value.getName() + " " + value.getNumber());
            }
        }
    }

    private static void print(String kind, String name, byte[] bytes) {
        System.out.println(kind + " " + name + " " + HexFormat.of().formatHex(bytes));
    }

    // ---- classes made by LightProto ----

    private static byte[] api(String name, byte[] bytes, boolean partial) throws Exception {
        Class<?> type = Class.forName(API_PACKAGE + "." + name.substring("api.".length()));
        Object message = type.getConstructor().newInstance();
        type.getMethod("parseFrom", byte[].class).invoke(message, (Object) bytes);
        if (!partial) {
            requireAllSet(message, 0);
        }
        return (byte[]) type.getMethod("toByteArray").invoke(message);
    }

    private static List<Class<?>> apiClasses() throws Exception {
        List<Class<?>> classes = new ArrayList<>();
        Path jar = Path.of(BaseCommand.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        Pattern inPackage = Pattern.compile(API_PACKAGE.replace('.', '/') + "/([^/]+)\\.class");
        try (JarFile file = new JarFile(jar.toFile())) {
            for (Enumeration<JarEntry> entries = file.entries(); entries.hasMoreElements(); ) {
                Matcher matcher = inPackage.matcher(entries.nextElement().getName());
                if (matcher.matches() && !matcher.group(1).startsWith("LightProto")) {
                    classes.add(Class.forName(API_PACKAGE + "." + matcher.group(1)));
                }
            }
        }
        return classes;
    }

    private static String apiName(Class<?> type) {
        return "api." + type.getName().substring(API_PACKAGE.length() + 1).replace('$', '.');
    }

    /** One field of a class made by LightProto, found by its constants and methods. */
    private static final class ApiField {
        final Class<?> owner;
        /** In upper case, words separated by underscores. */
        final String constant;
        final int number;
        final boolean repeated;
        final boolean required;
        final Method getter;
        private final String singular;

        ApiField(Class<?> owner, String constant, int place) throws Exception {
            this.owner = owner;
            this.constant = constant;
            this.number = constant(owner, "_" + constant + "_FIELD_NUMBER");
            String joined = constant.replace("_", "");
            String withoutPlural = joined.endsWith("IES")
                    ? joined.substring(0, joined.length() - 3) + "Y"
                    : joined.endsWith("S") ? joined.substring(0, joined.length() - 1) : joined;
            Method single = method("get" + joined, 0);
            if (single == null) {
                single = method("is" + joined, 0);
            }
            this.repeated = single == null;
            this.singular = repeated && method("add" + withoutPlural, -1) != null ? withoutPlural : joined;
            this.getter = repeated ? method("get" + singular + "At", 1) : single;
            int mask = constant(owner, "_" + constant + "_MASK");
            this.required = !repeated && (constant(owner, "_REQUIRED_FIELDS_MASK" + place / Integer.SIZE) & mask) != 0;
        }

        Class<?> type() {
            return getter.getReturnType();
        }

        boolean isMessage() {
            return type().getPackageName().equals(API_PACKAGE) && !type().isEnum();
        }

        int count(Object message) throws Exception {
            if (!repeated) {
                return (boolean) method("has" + constant.replace("_", ""), 0).invoke(message) ? 1 : 0;
            }
            for (String plural : new String[] {constant.replace("_", ""), singular + "S"}) {
                Method count = method("get" + plural + "Count", 0);
                if (count != null) {
                    return (int) count.invoke(message);
                }
            }
            throw new IllegalStateException("no count of " + owner + " " + constant);
        }

        Object value(Object message, int place) throws Exception {
            return repeated ? getter.invoke(message, place) : getter.invoke(message);
        }

        /** Sets the field, or adds an element. Messages are set by the caller, who is given the one to fill. */
        Object put(Object message, Object value) throws Exception {
            String name = (repeated ? "add" + singular : "set" + singular).toLowerCase();
            for (Method method : owner.getMethods()) {
                if (method.getName().toLowerCase().equals(name)) {
                    if (isMessage() && method.getParameterCount() == 0) {
                        return method.invoke(message);
                    }
                    if (!isMessage() && method.getParameterCount() == 1
                            && method.getParameterTypes()[0] == type()) {
                        return method.invoke(message, value);
                    }
                }
            }
            throw new IllegalStateException("no setter of " + owner + " " + constant);
        }

        private Method method(String name, int parameters) {
            for (Method method : owner.getMethods()) {
                if (method.getName().equalsIgnoreCase(name)
                        && (parameters < 0 || method.getParameterCount() == parameters)) {
                    return method;
                }
            }
            return null;
        }

        private static int constant(Class<?> owner, String name) throws Exception {
            try {
                Field field = owner.getDeclaredField(name);
                field.setAccessible(true);
                return field.getInt(null);
            } catch (NoSuchFieldException e) {
                return 0;
            }
        }
    }

    private static List<ApiField> fields(Class<?> type) throws Exception {
        List<ApiField> fields = new ArrayList<>();
        Pattern number = Pattern.compile("_(.+)_FIELD_NUMBER");
        for (Field field : type.getDeclaredFields()) {
            Matcher matcher = number.matcher(field.getName());
            if (Modifier.isStatic(field.getModifiers()) && matcher.matches()) {
                fields.add(new ApiField(type, matcher.group(1), fields.size()));
            }
        }
        return fields;
    }

    private static void requireAllSet(Object message, int depth) throws Exception {
        int commandType = message instanceof BaseCommand ? ((BaseCommand) message).getType().getValue() : 0;
        for (ApiField field : fields(message.getClass())) {
            boolean recursive = field.type() == message.getClass();
            boolean otherCommand = commandType != 0 && field.number != 1 && field.number != commandType;
            if (otherCommand || (recursive && depth > 0)) {
                continue;
            }
            int count = field.count(message);
            if (count == 0) {
                throw new IllegalStateException(message.getClass() + " lacks " + field.constant);
            }
            for (int place = 0; place < count; place++) {
                Object value = field.value(message, place);
                if (field.isMessage()) {
                    requireAllSet(value, recursive ? depth + 1 : 0);
                }
            }
        }
    }

    private static void fillAndPrint(Class<?> type, boolean extreme) throws Exception {
        if (type != BaseCommand.class) {
            Object message = type.getConstructor().newInstance();
            fill(message, extreme, 0);
            print("filled", apiName(type), (byte[]) type.getMethod("toByteArray").invoke(message));
            return;
        }
        for (ApiField field : fields(type)) {
            if (field.isMessage()) {
                BaseCommand command = new BaseCommand();
                command.setType(BaseCommand.Type.valueOf(field.number));
                fill(field.put(command, null), extreme, 0);
                print("filled", apiName(type), command.toByteArray());
            }
        }
    }

    private static void fill(Object message, boolean extreme, int depth) throws Exception {
        for (ApiField field : fields(message.getClass())) {
            boolean recursive = field.type() == message.getClass();
            if (recursive && depth > 0) {
                continue;
            }
            for (int place = 0; place < (field.repeated ? 2 : 1); place++) {
                Object inner = field.put(message, field.isMessage() ? null : value(field, place, extreme));
                if (field.isMessage()) {
                    fill(inner, extreme, recursive ? depth + 1 : 0);
                }
            }
        }
    }

    private static Object value(ApiField field, int place, boolean extreme) {
        Class<?> type = field.type();
        int small = field.number + 10 * place;
        if (type == boolean.class) {
            return !extreme;
        } else if (type == int.class) {
            boolean unsigned = UNSIGNED.contains(apiName(field.owner) + " " + field.number);
            return !extreme ? small : unsigned ? Integer.MAX_VALUE : Integer.MIN_VALUE + place;
        } else if (type == long.class) {
            return extreme ? Long.MIN_VALUE + place : (long) small;
        } else if (type == double.class) {
            return extreme ? -Double.MAX_VALUE : small + 0.25;
        } else if (type == String.class) {
            return text(field.constant, place, extreme);
        } else if (type == byte[].class) {
            return text(field.constant, place, extreme).getBytes(StandardCharsets.UTF_8);
        } else if (type.isEnum()) {
            return type.getEnumConstants()[extreme ? 0 : type.getEnumConstants().length - 1];
        }
        throw new IllegalStateException("a field of type " + type);
    }

    private static String text(String name, int place, boolean extreme) {
        return extreme ? "\u00fcn\u00efcode \ud83e\udd80".repeat(30 + place) : name + place;
    }

    private static void describe(Class<?> type) throws Exception {
        Object empty = type.getConstructor().newInstance();
        for (ApiField field : fields(type)) {
            String label = field.repeated ? "repeated" : field.required ? "required" : "optional";
            String defaultValue = "";
            if (!field.repeated) {
                try {
                    Object value = field.value(empty, 0);
                    defaultValue = " default=" + value;
                } catch (InvocationTargetException e) {
                    // Getters of fields without a default refuse.
                }
            }
            System.out.println("field " + apiName(type) + " " + field.number + " " + field.constant + " " + label
                    + " " + typeName(field.type()) + defaultValue);
        }
    }

    private static String typeName(Class<?> type) {
        if (type.getPackageName().equals(API_PACKAGE)) {
            return apiName(type);
        }
        return type == byte[].class ? "bytes" : type.getSimpleName().toLowerCase();
    }

    private static void describeEnum(Class<?> type) throws Exception {
        for (Object value : type.getEnumConstants()) {
            Object number = type.getMethod("getValue").invoke(value);
            System.out.println("value " + apiName(type) + " " + ((Enum<?>) value).name() + " " + number);
        }
    }

    // ---- classes made by protoc ----

    private static byte[] ml(String name, byte[] bytes, boolean partial) throws Exception {
        Message message = mlBuilder(name).mergeFrom(bytes).build();
        if (!partial) {
            requireAllSet(message);
        }
        return message.toByteArray();
    }

    private static Message.Builder mlBuilder(String name) throws Exception {
        String inner = name.substring("ml.".length()).replace('.', '$');
        Class<?> type = Class.forName(MLDataFormats.class.getName() + "$" + inner);
        return (Message.Builder) type.getMethod("newBuilder").invoke(null);
    }

    private static void requireAllSet(Message message) {
        if (!message.getUnknownFields().asMap().isEmpty()) {
            throw new IllegalStateException("unknown fields in " + message);
        }
        for (Descriptors.FieldDescriptor field : message.getDescriptorForType().getFields()) {
            int count = field.isRepeated() ? message.getRepeatedFieldCount(field) : message.hasField(field) ? 1 : 0;
            if (count == 0) {
                throw new IllegalStateException(field.getFullName() + " is not set");
            }
            for (int place = 0; place < count && field.getJavaType() == Descriptors.FieldDescriptor.JavaType.MESSAGE;
                    place++) {
                requireAllSet((Message) (field.isRepeated()
                        ? message.getRepeatedField(field, place)
                        : message.getField(field)));
            }
        }
    }

    private static void mlMessage(Descriptors.Descriptor type) throws Exception {
        String name = "ml." + type.getFullName();
        for (boolean extreme : new boolean[] {false, true}) {
            print("filled", name, fill(mlBuilder(name), extreme).toByteArray());
        }
        for (Descriptors.FieldDescriptor field : new TreeMap<>(byNumber(type)).values()) {
            String label = field.isRequired() ? "required" : field.isRepeated() ? "repeated" : "optional";
            String typeName = field.getJavaType() == Descriptors.FieldDescriptor.JavaType.MESSAGE
                    ? "ml." + field.getMessageType().getFullName()
                    : field.getJavaType() == Descriptors.FieldDescriptor.JavaType.ENUM
                            ? "ml." + field.getEnumType().getFullName()
                            : field.getType().name().toLowerCase();
            System.out.println("field " + name + " " + field.getNumber() + " " + field.getName() + " " + label + " "
                    + typeName + (field.hasDefaultValue() ? " default=" + field.getDefaultValue() : ""));
        }
        for (Descriptors.Descriptor nested : type.getNestedTypes()) {
            mlMessage(nested);
        }
    }

    private static TreeMap<Integer, Descriptors.FieldDescriptor> byNumber(Descriptors.Descriptor type) {
        TreeMap<Integer, Descriptors.FieldDescriptor> fields = new TreeMap<>();
        for (Descriptors.FieldDescriptor field : type.getFields()) {
            fields.put(field.getNumber(), field);
        }
        return fields;
    }

    private static Message fill(Message.Builder builder, boolean extreme) {
        for (Descriptors.FieldDescriptor field : builder.getDescriptorForType().getFields()) {
            for (int place = 0; place < (field.isRepeated() ? 2 : 1); place++) {
                int small = field.getNumber() + 10 * place;
                Object value = switch (field.getJavaType()) {
                    case MESSAGE -> fill(builder.newBuilderForField(field), extreme);
                    case BOOLEAN -> !extreme;
                    case INT -> extreme ? Integer.MIN_VALUE + place : small;
                    case LONG -> extreme ? Long.MIN_VALUE + place : (long) small;
                    case STRING -> text(field.getName(), place, extreme);
                    case BYTE_STRING -> ByteString.copyFromUtf8(text(field.getName(), place, extreme));
                    case ENUM -> field.getEnumType().getValues()
                            .get(extreme ? 0 : field.getEnumType().getValues().size() - 1);
                    default -> throw new IllegalStateException("a field of type " + field.getJavaType());
                };
                if (field.isRepeated()) {
                    builder.addRepeatedField(field, value);
                } else {
                    builder.setField(field, value);
                }
            }
        }
        return builder.build();
    }
}
