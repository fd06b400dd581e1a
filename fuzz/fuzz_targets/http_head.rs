#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| queen::http::targets::http_head(data));
