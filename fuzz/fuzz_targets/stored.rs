#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pulsegate::testing::fuzz::stored(data));
