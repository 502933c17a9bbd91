// Command compat drives a Pulsar service with the official Go client and checks what comes back. See ../README.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

type testCase struct {
	name string
	// run returns a note for the result line, or "".
	run func(*service) (string, error)
}

func silent(run func(*service) error) func(*service) (string, error) {
	return func(s *service) (string, error) { return "", run(s) }
}

var cases = []testCase{
	{"produce_consume", silent(produceConsume)},
	{"partitioned", silent(partitioned)},
	{"exclusive", silent(exclusive)},
	{"shared", silent(shared)},
	{"failover", silent(failover)},
	{"key_shared", silent(keyShared)},
	{"batched", silent(batched)},
	{"unbatched", silent(unbatched)},
	{"compression_none", silent(compressed("none"))},
	{"compression_lz4", silent(compressed("lz4"))},
	{"compression_zlib", silent(compressed("zlib"))},
	{"compression_zstd", silent(compressed("zstd"))},
	{"compression_snappy", silent(compressed("snappy"))},
	{"chunked_20mb", silent(chunked)},
	{"reader", silent(reader)},
	{"seek_by_id", silent(seekByID)},
	{"seek_by_time", silent(seekByTime)},
	{"disturbance", disturbance},
}

func main() {
	serviceURL := flag.String("service-url", "", "pulsar:// URL")
	adminURL := flag.String("admin-url", "", "http:// URL")
	namespace := flag.String("namespace", "public/default", "tenant/namespace of the topics")
	run := flag.String("run", fmt.Sprint(time.Now().Unix()), "part of every topic name")
	flag.Parse()
	chosen, err := choose(flag.Args())
	if err != nil || *serviceURL == "" || *adminURL == "" {
		fmt.Fprintln(os.Stderr, "usage: compat --service-url URL --admin-url URL [--namespace T/N] [--run ID] [CASE ...]", err)
		os.Exit(2)
	}
	s, err := newService(*serviceURL, *adminURL, *namespace, *run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "client:", err)
		os.Exit(1)
	}
	failed := 0
	for _, each := range chosen {
		if !runCase(each, s) {
			failed++
		}
	}
	s.client.Close()
	fmt.Printf("%d passed, %d failed\n", len(chosen)-failed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}

func choose(names []string) ([]testCase, error) {
	if len(names) == 0 {
		return cases, nil
	}
	known := map[string]testCase{}
	var all []string
	for _, each := range cases {
		known[each.name] = each
		all = append(all, each.name)
	}
	var chosen []testCase
	for _, name := range names {
		each, found := known[name]
		if !found {
			return nil, fmt.Errorf("\nunknown case %s; there are %s", name, strings.Join(all, " "))
		}
		chosen = append(chosen, each)
	}
	return chosen, nil
}

func runCase(each testCase, s *service) bool {
	began := time.Now()
	note, err := each.run(s)
	if err != nil {
		fmt.Printf("FAIL %s: %v\n", each.name, err)
		return false
	}
	fmt.Printf("PASS %s (%.1f s) %s\n", each.name, time.Since(began).Seconds(), note)
	return true
}
