package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

const (
	receiveTimeout = 60 * time.Second
	quietTime      = 1500 * time.Millisecond
)

// options are those of the command line.
type options struct {
	serviceURL, adminURL, adminToken, namespace, run, trust, authPlugin, authParams string
}

// service is what a case needs: a client, unique topic names, and the few admin calls.
type service struct {
	options
	client pulsar.Client
}

func newService(o options) (*service, error) {
	quiet := logrus.New()
	quiet.SetLevel(logrus.FatalLevel)
	client := pulsar.ClientOptions{
		URL:                   o.serviceURL,
		OperationTimeout:      60 * time.Second,
		Logger:                log.NewLoggerWithLogrus(quiet),
		TLSTrustCertsFilePath: o.trust,
		TLSValidateHostname:   o.trust != "",
	}
	if o.authPlugin != "" {
		authentication, err := pulsar.NewAuthentication(o.authPlugin, o.authParams)
		if err != nil {
			return nil, err
		}
		client.Authentication = authentication
	}
	made, err := pulsar.NewClient(client)
	return &service{o, made}, err
}

// topic is a topic of this run that the client creates on first use.
func (s *service) topic(name string) string {
	return fmt.Sprintf("persistent://%s/go-%s-%s", s.namespace, name, s.run)
}

// partitionedTopic is a topic of this run with partitions, created here.
func (s *service) partitionedTopic(name string, partitions int) (string, error) {
	topic := s.topic(name)
	url := s.adminURL + "/admin/v2/" + strings.Replace(topic, "://", "/", 1) + "/partitions"
	request, err := http.NewRequest(http.MethodPut, url, strings.NewReader(fmt.Sprint(partitions)))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	if s.adminToken != "" {
		request.Header.Set("Authorization", "Bearer "+s.adminToken)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		reason, _ := io.ReadAll(answer.Body)
		return "", fmt.Errorf("PUT %s: HTTP %d %s", url, answer.StatusCode, reason)
	}
	return topic, nil
}

// subscribe subscribes to everything the topic has; change may be nil.
func (s *service) subscribe(topic string, kind pulsar.SubscriptionType, change func(*pulsar.ConsumerOptions)) (pulsar.Consumer, error) {
	options := pulsar.ConsumerOptions{
		Topic: topic, SubscriptionName: "subscription", Type: kind,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}
	if change != nil {
		change(&options)
	}
	return s.client.Subscribe(options)
}

// payloads are distinct payloads.
func payloads(start, count int) []string {
	var contents []string
	for index := start; index < start+count; index++ {
		contents = append(contents, fmt.Sprint("message ", index))
	}
	return contents
}

// sendAll sends without waiting in between, then waits for every receipt.
func sendAll(producer pulsar.Producer, contents []string) ([]pulsar.MessageID, error) {
	messages := make([]*pulsar.ProducerMessage, len(contents))
	for index, content := range contents {
		messages[index] = &pulsar.ProducerMessage{Payload: []byte(content)}
	}
	return sendMessages(producer, messages)
}

func sendMessages(producer pulsar.Producer, messages []*pulsar.ProducerMessage) ([]pulsar.MessageID, error) {
	ids := make([]pulsar.MessageID, len(messages))
	failures := make([]error, len(messages))
	var receipts sync.WaitGroup
	receipts.Add(len(messages))
	for index, message := range messages {
		producer.SendAsync(context.Background(), message, func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			ids[index], failures[index] = id, err
			receipts.Done()
		})
	}
	if err := producer.Flush(); err != nil {
		return nil, err
	}
	receipts.Wait()
	return ids, errors.Join(failures...)
}

// next is the next message, or an error when none comes in time.
func next(consumer pulsar.Consumer, timeout time.Duration) (pulsar.Message, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return consumer.Receive(ctx)
}

// receive receives and acknowledges that many messages and returns their payloads in order.
func receive(consumer pulsar.Consumer, count int) ([]string, error) {
	var contents []string
	for len(contents) < count {
		message, err := next(consumer, receiveTimeout)
		if err != nil {
			return contents, fmt.Errorf("after %d messages: %w", len(contents), err)
		}
		contents = append(contents, string(message.Payload()))
		if err := consumer.Ack(message); err != nil {
			return contents, err
		}
	}
	return contents, nil
}

// receiveExactly fails unless exactly these messages come next.
func receiveExactly(consumer pulsar.Consumer, expected []string, what string) error {
	seen, err := receive(consumer, len(expected))
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return checkEqual(seen, expected, what)
}

// receiveShared receives from several consumers in turn until that many came: one list per consumer.
func receiveShared(consumers []pulsar.Consumer, count int) ([][]pulsar.Message, error) {
	lists := make([][]pulsar.Message, len(consumers))
	received := 0
	for end := time.Now().Add(receiveTimeout); received < count && time.Now().Before(end); {
		for index, consumer := range consumers {
			for {
				message, err := next(consumer, 50*time.Millisecond)
				if errors.Is(err, context.DeadlineExceeded) {
					break
				}
				if err != nil {
					return lists, err
				}
				lists[index] = append(lists[index], message)
				received++
				if err := consumer.Ack(message); err != nil {
					return lists, err
				}
			}
		}
	}
	return lists, nil
}

func checkEqual(seen, expected any, what string) error {
	if reflect.DeepEqual(seen, expected) {
		return nil
	}
	return fmt.Errorf("%s: expected %.300s, got %.300s", what, fmt.Sprint(expected), fmt.Sprint(seen))
}
