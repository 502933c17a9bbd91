// Command compat drives a Pulsar service with the official Go client and checks what comes back. See ../README.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
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
	{"pattern", silent(pattern)},
	{"disturbance", disturbance},
}

func main() {
	var o options
	flag.StringVar(&o.serviceURL, "service-url", "", "pulsar:// or pulsar+ssl:// URL")
	flag.StringVar(&o.adminURL, "admin-url", "", "http:// URL")
	flag.StringVar(&o.adminToken, "admin-token", "", "token for the admin URL")
	flag.StringVar(&o.namespace, "namespace", "public/default", "tenant/namespace of the topics")
	flag.StringVar(&o.run, "run", fmt.Sprint(time.Now().Unix()), "part of every topic name")
	flag.StringVar(&o.trust, "trust", "", "file with the certificates that are trusted")
	flag.StringVar(&o.authPlugin, "auth-plugin", "", "class name of the method of authentication")
	flag.StringVar(&o.authParams, "auth-params", "", "its parameters")
	flag.Parse()
	chosen, err := choose(flag.Args())
	if err != nil || o.serviceURL == "" || o.adminURL == "" {
		fmt.Fprintln(os.Stderr, "usage: compat --service-url URL --admin-url URL [OPTION ...] [CASE ...]", err)
		flag.PrintDefaults()
		os.Exit(2)
	}
	s, err := newService(o)
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
	for _, each := range slices.Concat(cases, roleCases) {
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
