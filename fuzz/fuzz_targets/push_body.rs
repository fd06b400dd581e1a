#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| queen::wire::targets::push_body(data));
