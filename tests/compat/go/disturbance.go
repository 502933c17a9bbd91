package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

const (
	timeBetweenMessages = 10 * time.Millisecond
	drainTime           = 90 * time.Second
	numberOfKeys        = 8
)

// flow is one topic: a producer, consumers, and what was sent, acknowledged by the broker and received.
type flow struct {
	name     string
	kind     pulsar.SubscriptionType
	producer pulsar.Producer
	stopping chan struct{}
	produced chan struct{}
	drained  chan struct{}
	readers  sync.WaitGroup
	sent     atomic.Int64

	lock      sync.Mutex
	receipted map[int]bool
	seen      map[int]bool
	// order holds the first arrivals of each stream: a partition, or one key of it.
	order   map[string][]int
	repeats int
	// The longest time between two messages, and when the newest one came.
	pause  time.Duration
	last   time.Time
	errors []string
}

func startFlow(s *service, name, topic string, kind pulsar.SubscriptionType, consumers int, options pulsar.ProducerOptions) (*flow, error) {
	f := &flow{
		name: name, kind: kind,
		stopping: make(chan struct{}), produced: make(chan struct{}), drained: make(chan struct{}),
		receipted: map[int]bool{}, seen: map[int]bool{}, order: map[string][]int{},
	}
	for index := range consumers {
		consumer, err := s.subscribe(topic, kind, func(options *pulsar.ConsumerOptions) {
			options.Name = fmt.Sprintf("%s-%d", name, index)
		})
		if err != nil {
			return nil, err
		}
		f.readers.Add(1)
		go f.consume(consumer)
	}
	options.Topic = topic
	// No time limit: what a client cannot send now it has to send after it reconnected.
	options.SendTimeout = -1
	producer, err := s.client.CreateProducer(options)
	if err != nil {
		return nil, err
	}
	f.producer = producer
	go f.produce()
	return f, nil
}

func (f *flow) note(what string, err error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.errors = append(f.errors, fmt.Sprintf("%s: %v", what, err))
}

// produce sends numbered messages until told to stop, then waits for the receipts.
func (f *flow) produce() {
	defer close(f.produced)
	ticker := time.NewTicker(timeBetweenMessages)
	defer ticker.Stop()
	for number := 0; ; number++ {
		select {
		case <-f.stopping:
			if err := f.producer.Flush(); err != nil {
				f.note("flush", err)
			}
			return
		case <-ticker.C:
		}
		message := &pulsar.ProducerMessage{Payload: fmt.Appendf(nil, "all:%d", number)}
		if f.kind == pulsar.KeyShared {
			message.Key = fmt.Sprint("k", number%numberOfKeys)
			message.Payload = fmt.Appendf(nil, "%s:%d", message.Key, number)
		}
		f.sent.Add(1)
		f.producer.SendAsync(context.Background(), message, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			if err != nil {
				f.note("receipt", err)
				return
			}
			f.lock.Lock()
			defer f.lock.Unlock()
			f.receipted[number] = true
		})
	}
}

// consume receives, notes and acknowledges until all that was sent has come.
func (f *flow) consume(consumer pulsar.Consumer) {
	defer f.readers.Done()
	defer consumer.Close()
	for {
		select {
		case <-f.drained:
			return
		default:
		}
		message, err := next(consumer, 500*time.Millisecond)
		if errors.Is(err, context.DeadlineExceeded) {
			continue
		}
		if err != nil {
			f.note("receive", err)
			return
		}
		if err := f.onMessage(message); err != nil {
			f.note("message", err)
		}
		if err := consumer.Ack(message); err != nil {
			f.note("acknowledge", err)
		}
	}
}

func (f *flow) onMessage(message pulsar.Message) error {
	stream, digits, _ := strings.Cut(string(message.Payload()), ":")
	number, err := strconv.Atoi(digits)
	if err != nil {
		return err
	}
	stream = message.Topic() + " " + stream
	f.lock.Lock()
	defer f.lock.Unlock()
	now := time.Now()
	if !f.last.IsZero() {
		f.pause = max(f.pause, now.Sub(f.last))
	}
	f.last = now
	if f.seen[number] {
		f.repeats++
		return nil
	}
	f.seen[number] = true
	f.order[stream] = append(f.order[stream], number)
	return nil
}

// missing counts the receipted messages that no consumer has seen yet.
func (f *flow) missing() int {
	f.lock.Lock()
	defer f.lock.Unlock()
	missing := 0
	for number := range f.receipted {
		if !f.seen[number] {
			missing++
		}
	}
	return missing
}

// problems is all that went wrong.
func (f *flow) problems() []string {
	missing := f.missing()
	f.lock.Lock()
	defer f.lock.Unlock()
	var found []string
	for _, err := range f.errors[:min(3, len(f.errors))] {
		found = append(found, fmt.Sprintf("%s: client error %s", f.name, err))
	}
	if missing > 0 {
		found = append(found, fmt.Sprintf("%s: %d acknowledged messages lost", f.name, missing))
	}
	if unsent := int(f.sent.Load()) - len(f.receipted); unsent > 0 {
		found = append(found, fmt.Sprintf("%s: %d messages never got a receipt", f.name, unsent))
	}
	if f.kind == pulsar.Shared {
		return found
	}
	for stream, numbers := range f.order {
		for index := 1; index < len(numbers); index++ {
			if numbers[index] < numbers[index-1] {
				found = append(found, fmt.Sprintf("%s: order lost in %s: %d came before %d", f.name, stream,
					numbers[index-1], numbers[index]))
				break
			}
		}
	}
	return found
}

// disturbance keeps four kinds of subscriptions busy while the harness unloads bundles and kills a broker. It says
// "RUNNING disturbance" when messages flow, then runs until a line (or the end) comes on standard input.
func disturbance(s *service) (string, error) {
	halves, err := s.partitionedTopic("disturbance-failover", 2)
	if err != nil {
		return "", err
	}
	var flows []*flow
	for _, kind := range []struct {
		name, topic string
		kind        pulsar.SubscriptionType
		consumers   int
		options     pulsar.ProducerOptions
	}{
		{"exclusive", s.topic("disturbance-exclusive"), pulsar.Exclusive, 1, pulsar.ProducerOptions{}},
		{"failover", halves, pulsar.Failover, 2, pulsar.ProducerOptions{DisableBatching: true}},
		{"shared", s.topic("disturbance-shared"), pulsar.Shared, 2, pulsar.ProducerOptions{}},
		{"key-shared", s.topic("disturbance-key-shared"), pulsar.KeyShared, 2,
			pulsar.ProducerOptions{BatcherBuilderType: pulsar.KeyBasedBatchBuilder}},
	} {
		f, err := startFlow(s, kind.name, kind.topic, kind.kind, kind.consumers, kind.options)
		if err != nil {
			return "", err
		}
		flows = append(flows, f)
	}
	fmt.Println("RUNNING disturbance")
	// The end of the input means "stop" as well, so an error here is no failure.
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return judge(flows)
}

// judge stops the producers, waits until everything came, and says what is wrong.
func judge(flows []*flow) (string, error) {
	deadline := time.After(drainTime)
	for _, f := range flows {
		close(f.stopping)
	}
	for _, f := range flows {
		select {
		case <-f.produced:
		case <-deadline:
			return "", fmt.Errorf("%s: the producer did not flush within %s", f.name, drainTime)
		}
	}
	for end := time.Now().Add(drainTime); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		missing := 0
		for _, f := range flows {
			missing += f.missing()
		}
		if missing == 0 {
			break
		}
	}
	var problems []string
	sent, repeats, pause := int64(0), 0, time.Duration(0)
	for _, f := range flows {
		close(f.drained)
		f.readers.Wait()
		f.producer.Close()
		problems = append(problems, f.problems()...)
		sent += f.sent.Load()
		repeats += f.repeats
		pause = max(pause, f.pause)
	}
	if len(problems) > 0 {
		return "", errors.New(strings.Join(problems, "; "))
	}
	return fmt.Sprintf("%d messages, %d repeats, longest pause %.1f s", sent, repeats, pause.Seconds()), nil
}
