#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| queen::wire::targets::transaction_body(data));
