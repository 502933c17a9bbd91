package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"
)

// roleCases run only when they are named: they want a broker that authorizes, and a role of their own. Each returns the
// words of the refusal: they are the broker's. They have a topic in common: the first one fills it, the second one takes from it.
var roleCases = []testCase{
	{"produce_only", produceOnly},
	{"consume_only", consumeOnly},
	{"stranger", stranger},
}

func produceOnly(s *service) (string, error) {
	topic := s.topic("roles")
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		return "", err
	}
	defer producer.Close()
	if _, err := sendAll(producer, payloads(0, 10)); err != nil {
		return "", err
	}
	return subscribingIsRefused(s, topic)
}

func consumeOnly(s *service) (string, error) {
	topic := s.topic("roles")
	consumer, err := s.subscribe(topic, pulsar.Exclusive, nil)
	if err != nil {
		return "", err
	}
	defer consumer.Close()
	if err := receiveExactly(consumer, payloads(0, 10), "messages"); err != nil {
		return "", err
	}
	return producingIsRefused(s, topic)
}

func stranger(s *service) (string, error) {
	topic := s.topic("roles")
	if _, err := producingIsRefused(s, topic); err != nil {
		return "", err
	}
	reader, err := s.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	if err == nil {
		reader.Close()
	}
	if _, err := refusal("a reader", err); err != nil {
		return "", err
	}
	return subscribingIsRefused(s, topic)
}

func producingIsRefused(s *service, topic string) (string, error) {
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err == nil {
		producer.Close()
	}
	return refusal("a producer", err)
}

func subscribingIsRefused(s *service, topic string) (string, error) {
	consumer, err := s.subscribe(topic, pulsar.Exclusive, nil)
	if err == nil {
		consumer.Close()
	}
	return refusal("a consumer", err)
}

// refusal returns the words of an error that has to be one of authorization.
func refusal(what string, err error) (string, error) {
	if err == nil {
		return "", errors.New(what + " was opened without the right to it")
	}
	if !strings.Contains(err.Error(), "AuthorizationError") {
		return "", fmt.Errorf("%s was refused for another reason: %w", what, err)
	}
	return fmt.Sprintf("%.300s", strings.ReplaceAll(err.Error(), "\n", " ")), nil
}
