//! Numbers of the fields that are read or changed one by one in encoded commands (`proto/PulsarApi.proto`).
//!
//! For [`super::peek`] and [`super::rewrite`]; whoever decodes a whole command needs none of them. A test compares them with the
//! compiled protocol.

macro_rules! fields {
    ($( $(#[$doc:meta])* $module:ident = $message:literal { $( $name:ident = $number:literal $field:literal; )+ } )+) => {
        $(
            $(#[$doc])*
            pub mod $module {
                $(
                    #[doc = concat!("`", $message, ".", $field, "`.")]
                    pub const $name: u32 = $number;
                )+
            }
        )+

        /// Message, field and number of each constant.
        #[cfg(test)]
        const ALL: &[(&str, &str, u32)] = &[ $( $( ($message, $field, $module::$name), )+ )+ ];
    };
}

fields! {
    /// CONNECT.
    connect = "CommandConnect" {
        AUTH_METHOD = 2 "auth_method";
        AUTH_DATA = 3 "auth_data";
        AUTH_METHOD_NAME = 5 "auth_method_name";
        PROXY_TO_BROKER_URL = 6 "proxy_to_broker_url";
        ORIGINAL_PRINCIPAL = 7 "original_principal";
        ORIGINAL_AUTH_DATA = 8 "original_auth_data";
        ORIGINAL_AUTH_METHOD = 9 "original_auth_method";
        FEATURE_FLAGS = 10 "feature_flags";
        PROXY_VERSION = 11 "proxy_version";
    }
    /// LOOKUP.
    lookup = "CommandLookupTopic" {
        TOPIC = 1 "topic";
        AUTHORITATIVE = 3 "authoritative";
        ORIGINAL_PRINCIPAL = 4 "original_principal";
        ORIGINAL_AUTH_DATA = 5 "original_auth_data";
        ORIGINAL_AUTH_METHOD = 6 "original_auth_method";
        ADVERTISED_LISTENER_NAME = 7 "advertised_listener_name";
    }
    /// LOOKUP_RESPONSE.
    lookup_response = "CommandLookupTopicResponse" {
        BROKER_SERVICE_URL = 1 "brokerServiceUrl";
        BROKER_SERVICE_URL_TLS = 2 "brokerServiceUrlTls";
        RESPONSE = 3 "response";
        AUTHORITATIVE = 5 "authoritative";
        PROXY_THROUGH_SERVICE_URL = 8 "proxy_through_service_url";
    }
    /// PARTITIONED_METADATA.
    partitioned_metadata = "CommandPartitionedTopicMetadata" {
        TOPIC = 1 "topic";
        ORIGINAL_PRINCIPAL = 3 "original_principal";
        ORIGINAL_AUTH_DATA = 4 "original_auth_data";
        ORIGINAL_AUTH_METHOD = 5 "original_auth_method";
    }
    /// GET_TOPICS_OF_NAMESPACE.
    topics_of_namespace = "CommandGetTopicsOfNamespace" {
        NAMESPACE = 2 "namespace";
    }
    /// GET_SCHEMA.
    get_schema = "CommandGetSchema" {
        TOPIC = 2 "topic";
    }
    /// PRODUCER.
    producer = "CommandProducer" {
        TOPIC = 1 "topic";
        PRODUCER_ID = 2 "producer_id";
        REQUEST_ID = 3 "request_id";
    }
    /// PRODUCER_SUCCESS.
    producer_success = "CommandProducerSuccess" {
        REQUEST_ID = 1 "request_id";
        PRODUCER_READY = 6 "producer_ready";
    }
    /// SUBSCRIBE.
    subscribe = "CommandSubscribe" {
        TOPIC = 1 "topic";
        CONSUMER_ID = 4 "consumer_id";
        REQUEST_ID = 5 "request_id";
    }
    /// UNSUBSCRIBE.
    unsubscribe = "CommandUnsubscribe" {
        CONSUMER_ID = 1 "consumer_id";
        REQUEST_ID = 2 "request_id";
    }
    /// SUCCESS.
    success = "CommandSuccess" {
        REQUEST_ID = 1 "request_id";
    }
    /// ERROR.
    error = "CommandError" {
        REQUEST_ID = 1 "request_id";
    }
    /// SEND.
    send = "CommandSend" {
        PRODUCER_ID = 1 "producer_id";
        SEQUENCE_ID = 2 "sequence_id";
        NUM_MESSAGES = 3 "num_messages";
    }
    /// MESSAGE.
    message = "CommandMessage" {
        CONSUMER_ID = 1 "consumer_id";
    }
    /// CLOSE_PRODUCER.
    close_producer = "CommandCloseProducer" {
        PRODUCER_ID = 1 "producer_id";
        ASSIGNED_BROKER_SERVICE_URL = 3 "assignedBrokerServiceUrl";
        ASSIGNED_BROKER_SERVICE_URL_TLS = 4 "assignedBrokerServiceUrlTls";
    }
    /// CLOSE_CONSUMER.
    close_consumer = "CommandCloseConsumer" {
        CONSUMER_ID = 1 "consumer_id";
        ASSIGNED_BROKER_SERVICE_URL = 3 "assignedBrokerServiceUrl";
        ASSIGNED_BROKER_SERVICE_URL_TLS = 4 "assignedBrokerServiceUrlTls";
    }
    /// TOPIC_MIGRATED.
    topic_migrated = "CommandTopicMigrated" {
        BROKER_SERVICE_URL = 3 "brokerServiceUrl";
        BROKER_SERVICE_URL_TLS = 4 "brokerServiceUrlTls";
    }
    /// MessageMetadata.
    message_metadata = "MessageMetadata" {
        NUM_MESSAGES_IN_BATCH = 11 "num_messages_in_batch";
    }
    /// The envelope of all commands.
    base_command = "BaseCommand" {
        TYPE = 1 "type";
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::ALL;
    use crate::protocol::proto::DESCRIPTOR_SET;

    #[test]
    fn every_number_is_that_of_its_field() {
        let pool = DescriptorPool::decode(DESCRIPTOR_SET).unwrap();
        for (message, field, number) in ALL {
            let message = pool
                .get_message_by_name(&format!("pulsar.proto.{message}"))
                .unwrap_or_else(|| panic!("no message {message}"));
            let field = message
                .get_field_by_name(field)
                .unwrap_or_else(|| panic!("no field {field} in {}", message.name()));
            assert_eq!(field.number(), *number, "{}", field.full_name());
        }
    }
}
