package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"sort"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

func produceConsume(s *service) error {
	topic := s.topic("plain")
	consumer, err := s.subscribe(topic, pulsar.Exclusive, nil)
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		return err
	}
	defer producer.Close()
	for _, content := range payloads(0, 10) {
		_, err := producer.Send(context.Background(), &pulsar.ProducerMessage{
			Payload: []byte(content), Key: "k", Properties: map[string]string{"p": "v"}, EventTime: time.UnixMilli(12345),
		})
		if err != nil {
			return err
		}
	}
	message, err := next(consumer, receiveTimeout)
	if err != nil {
		return err
	}
	seen := []any{string(message.Payload()), message.Key(), message.Properties(), message.EventTime().UnixMilli()}
	expected := []any{"message 0", "k", map[string]string{"p": "v"}, int64(12345)}
	if err := errors.Join(checkEqual(seen, expected, "first message"), consumer.Ack(message)); err != nil {
		return err
	}
	if err := receiveExactly(consumer, payloads(1, 9), "messages"); err != nil {
		return err
	}
	if message, err := next(consumer, quietTime); err == nil {
		return fmt.Errorf("unexpected message %q", message.Payload())
	}
	return nil
}

// keyed are messages of several keys, interleaved, and the payloads by key.
func keyed(keys, each int) ([]*pulsar.ProducerMessage, map[string][]string) {
	var messages []*pulsar.ProducerMessage
	byKey := map[string][]string{}
	for index := range each {
		for number := range keys {
			key, content := fmt.Sprint("key ", number), fmt.Sprint("message ", 100*number+index)
			messages = append(messages, &pulsar.ProducerMessage{Key: key, Payload: []byte(content)})
			byKey[key] = append(byKey[key], content)
		}
	}
	return messages, byKey
}

func partitioned(s *service) error {
	topic, err := s.partitionedTopic("partitioned", 3)
	if err != nil {
		return err
	}
	names, err := s.client.TopicPartitions(topic)
	if err := errors.Join(err, checkEqual(len(names), 3, "partitions")); err != nil {
		return err
	}
	consumer, err := s.subscribe(topic, pulsar.Exclusive, nil)
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		return err
	}
	defer producer.Close()
	messages, sent := keyed(6, 10)
	if _, err := sendMessages(producer, messages); err != nil {
		return err
	}
	seen, partitions := map[string][]string{}, map[string]bool{}
	for range messages {
		message, err := next(consumer, receiveTimeout)
		if err != nil {
			return err
		}
		seen[message.Key()] = append(seen[message.Key()], string(message.Payload()))
		partitions[message.Topic()] = true
		if err := consumer.Ack(message); err != nil {
			return err
		}
	}
	if len(partitions) < 2 {
		return errors.New("all keys went to one partition")
	}
	return checkEqual(seen, sent, "messages by key")
}

func exclusive(s *service) error {
	topic := s.topic("exclusive")
	consumer, err := s.subscribe(topic, pulsar.Exclusive, nil)
	if err != nil {
		return err
	}
	defer consumer.Close()
	if second, err := s.subscribe(topic, pulsar.Exclusive, nil); err == nil {
		second.Close()
		return errors.New("a second exclusive consumer was let in")
	} else if !strings.Contains(err.Error(), "ConsumerBusy") {
		return err
	}
	return produceAndReceive(s, consumer, pulsar.ProducerOptions{Topic: topic}, payloads(0, 20))
}

// produceAndReceive sends with a producer of its own and expects the same from the consumer.
func produceAndReceive(s *service, consumer pulsar.Consumer, options pulsar.ProducerOptions, contents []string) error {
	producer, err := s.client.CreateProducer(options)
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := sendAll(producer, contents); err != nil {
		return err
	}
	return receiveExactly(consumer, contents, "messages")
}

// pair subscribes twice.
func pair(s *service, topic string, kind pulsar.SubscriptionType, change func(int, *pulsar.ConsumerOptions)) ([]pulsar.Consumer, error) {
	var consumers []pulsar.Consumer
	for index := range 2 {
		consumer, err := s.subscribe(topic, kind, func(options *pulsar.ConsumerOptions) { change(index, options) })
		if err != nil {
			return nil, err
		}
		consumers = append(consumers, consumer)
	}
	return consumers, nil
}

func shared(s *service) error {
	topic := s.topic("shared")
	consumers, err := pair(s, topic, pulsar.Shared, func(_ int, options *pulsar.ConsumerOptions) { options.ReceiverQueueSize = 5 })
	if err != nil {
		return err
	}
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := sendAll(producer, payloads(0, 100)); err != nil {
		return err
	}
	lists, err := receiveShared(consumers, 100)
	if err != nil {
		return err
	}
	var seen []string
	for index, list := range lists {
		if len(list) == 0 {
			return fmt.Errorf("consumer %d got nothing", index)
		}
		for _, message := range list {
			seen = append(seen, string(message.Payload()))
		}
		consumers[index].Close()
	}
	expected := payloads(0, 100)
	sort.Strings(expected)
	sort.Strings(seen)
	return checkEqual(seen, expected, "messages")
}

func failover(s *service) error {
	topic := s.topic("failover")
	consumers, err := pair(s, topic, pulsar.Failover, func(index int, options *pulsar.ConsumerOptions) {
		options.Name = []string{"a", "b"}[index]
	})
	if err != nil {
		return err
	}
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := sendAll(producer, payloads(0, 20)); err != nil {
		return err
	}
	lists, err := receiveShared(consumers, 20)
	if err != nil {
		return err
	}
	active := 0
	if len(lists[0]) == 0 {
		active = 1
	}
	var seen []string
	for _, message := range lists[active] {
		seen = append(seen, string(message.Payload()))
	}
	if err := checkEqual(seen, payloads(0, 20), "messages of the active consumer"); err != nil {
		return err
	}
	if len(lists[1-active]) > 0 {
		return errors.New("the waiting consumer got messages")
	}
	consumers[active].Close()
	defer consumers[1-active].Close()
	if _, err := sendAll(producer, payloads(20, 20)); err != nil {
		return err
	}
	return receiveExactly(consumers[1-active], payloads(20, 20), "messages after the switch")
}

func keyShared(s *service) error {
	topic := s.topic("key-shared")
	consumers, err := pair(s, topic, pulsar.KeyShared, func(int, *pulsar.ConsumerOptions) {})
	if err != nil {
		return err
	}
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, BatcherBuilderType: pulsar.KeyBasedBatchBuilder})
	if err != nil {
		return err
	}
	defer producer.Close()
	messages, sent := keyed(20, 10)
	if _, err := sendMessages(producer, messages); err != nil {
		return err
	}
	lists, err := receiveShared(consumers, len(messages))
	if err != nil {
		return err
	}
	owners, seen := map[string]int{}, map[string][]string{}
	for index, list := range lists {
		if len(list) == 0 {
			return fmt.Errorf("consumer %d got no key", index)
		}
		for _, message := range list {
			if owner, found := owners[message.Key()]; found && owner != index {
				return fmt.Errorf("%s went to both consumers", message.Key())
			}
			owners[message.Key()] = index
			seen[message.Key()] = append(seen[message.Key()], string(message.Payload()))
		}
		consumers[index].Close()
	}
	return checkEqual(seen, sent, "messages by key")
}

func batched(s *service) error {
	largest, err := largestBatch(s, pulsar.ProducerOptions{
		Topic: s.topic("batched"), BatchingMaxMessages: 50, BatchingMaxPublishDelay: 200 * time.Millisecond,
	})
	if err == nil && largest <= 1 {
		err = errors.New("nothing was batched")
	}
	return err
}

func unbatched(s *service) error {
	largest, err := largestBatch(s, pulsar.ProducerOptions{Topic: s.topic("unbatched"), DisableBatching: true})
	return errors.Join(err, checkEqual(largest <= 1, true, "messages are on their own"))
}

// largestBatch sends and receives 200 messages and returns the size of the largest batch; 0 or 1 without batching.
func largestBatch(s *service, options pulsar.ProducerOptions) (int32, error) {
	consumer, err := s.subscribe(options.Topic, pulsar.Exclusive, nil)
	if err != nil {
		return 0, err
	}
	defer consumer.Close()
	producer, err := s.client.CreateProducer(options)
	if err != nil {
		return 0, err
	}
	defer producer.Close()
	if _, err := sendAll(producer, payloads(0, 200)); err != nil {
		return 0, err
	}
	largest := int32(0)
	for _, content := range payloads(0, 200) {
		message, err := next(consumer, receiveTimeout)
		if err != nil {
			return largest, err
		}
		largest = max(largest, message.ID().BatchSize())
		if err := errors.Join(checkEqual(string(message.Payload()), content, "message"), consumer.AckCumulative(message)); err != nil {
			return largest, err
		}
	}
	return largest, nil
}

var codecs = map[string]pulsar.CompressionType{
	"none": pulsar.NoCompression, "lz4": pulsar.LZ4, "zlib": pulsar.ZLib, "zstd": pulsar.ZSTD, "snappy": pulsar.SNAPPY,
}

func compressed(codec string) func(*service) error {
	return func(s *service) error {
		topic := s.topic("compression-" + codec)
		consumer, err := s.subscribe(topic, pulsar.Exclusive, nil)
		if err != nil {
			return err
		}
		defer consumer.Close()
		var contents []string
		for index := range 20 {
			contents = append(contents, strings.Repeat(fmt.Sprintf("line %d ", index), 500))
		}
		for _, disable := range []bool{true, false} {
			err := produceAndReceive(s, consumer, pulsar.ProducerOptions{
				Topic: topic, CompressionType: codecs[codec], DisableBatching: disable,
			}, contents)
			if err != nil {
				return err
			}
		}
		return nil
	}
}

func chunked(s *service) error {
	topic := s.topic("chunked")
	consumer, err := s.subscribe(topic, pulsar.Exclusive, nil)
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, DisableBatching: true, EnableChunking: true, SendTimeout: receiveTimeout,
	})
	if err != nil {
		return err
	}
	defer producer.Close()
	content := make([]byte, 20*1024*1024)
	rand.New(rand.NewSource(20)).Read(content)
	for _, payload := range [][]byte{content, []byte("after")} {
		if _, err := producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: payload}); err != nil {
			return err
		}
	}
	message, err := next(consumer, receiveTimeout)
	if err != nil {
		return err
	}
	if !bytes.Equal(message.Payload(), content) {
		return fmt.Errorf("%d other bytes came back", len(message.Payload()))
	}
	if err := consumer.Ack(message); err != nil {
		return err
	}
	return receiveExactly(consumer, []string{"after"}, "message after it")
}

func reader(s *service) error {
	topic := s.topic("reader")
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic})
	if err != nil {
		return err
	}
	defer producer.Close()
	ids, err := sendAll(producer, payloads(0, 20))
	if err != nil {
		return err
	}
	if err := readExactly(s, topic, pulsar.EarliestMessageID(), payloads(0, 20)); err != nil {
		return err
	}
	return readExactly(s, topic, ids[9], payloads(10, 10))
}

// readExactly reads from a start position and expects exactly these messages to the end of the topic.
func readExactly(s *service, topic string, start pulsar.MessageID, expected []string) error {
	reader, err := s.client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: start})
	if err != nil {
		return err
	}
	defer reader.Close()
	ctx, cancel := context.WithTimeout(context.Background(), receiveTimeout)
	defer cancel()
	var seen []string
	for reader.HasNext() {
		message, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		seen = append(seen, string(message.Payload()))
	}
	return checkEqual(seen, expected, "messages read")
}

func seekByID(s *service) error {
	topic := s.topic("seek-id")
	consumer, err := s.subscribe(topic, pulsar.Exclusive, nil)
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	ids, err := sendAll(producer, payloads(0, 20))
	if err != nil {
		return err
	}
	if err := receiveExactly(consumer, payloads(0, 20), "messages"); err != nil {
		return err
	}
	if err := consumer.Seek(ids[5]); err != nil {
		return err
	}
	// Whether the message that was sought comes again is each client's own choice.
	message, err := next(consumer, receiveTimeout)
	if err != nil {
		return err
	}
	if first := string(message.Payload()); first != "message 5" && first != "message 6" {
		return fmt.Errorf("%s came after the seek", first)
	}
	// This client's Seek refuses EarliestMessageID; its own way to the start is the first id.
	if err := consumer.Seek(ids[0]); err != nil {
		return err
	}
	seen, err := receive(consumer, 19)
	if err != nil {
		return err
	}
	first, _ := strings.CutPrefix(seen[0], "message ")
	if first != "0" && first != "1" {
		return fmt.Errorf("%s came after the seek to the start", seen[0])
	}
	return nil
}

func seekByTime(s *service) error {
	topic := s.topic("seek-time")
	consumer, err := s.subscribe(topic, pulsar.Exclusive, nil)
	if err != nil {
		return err
	}
	defer consumer.Close()
	producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	if err != nil {
		return err
	}
	defer producer.Close()
	if _, err := sendAll(producer, payloads(0, 10)); err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond)
	middle := time.Now()
	time.Sleep(500 * time.Millisecond)
	if _, err := sendAll(producer, payloads(10, 10)); err != nil {
		return err
	}
	if err := receiveExactly(consumer, payloads(0, 20), "messages"); err != nil {
		return err
	}
	if err := consumer.SeekByTime(middle); err != nil {
		return err
	}
	return receiveExactly(consumer, payloads(10, 10), "messages after the seek")
}

func pattern(s *service) error {
	for index, content := range payloads(0, 3) {
		producer, err := s.client.CreateProducer(pulsar.ProducerOptions{Topic: s.topic(fmt.Sprint("pattern-", index))})
		if err != nil {
			return err
		}
		_, err = producer.Send(context.Background(), &pulsar.ProducerMessage{Payload: []byte(content)})
		producer.Close()
		if err != nil {
			return err
		}
	}
	consumer, err := s.subscribe("", pulsar.Exclusive, func(options *pulsar.ConsumerOptions) {
		options.TopicsPattern = s.topic("pattern-.*")
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	seen, err := receive(consumer, 3)
	if err != nil {
		return err
	}
	sort.Strings(seen)
	return checkEqual(seen, payloads(0, 3), "messages of all topics")
}
