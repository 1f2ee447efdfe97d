//! libFuzzer's entry point for [`datapath::vhost_user::fuzz::ring`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| datapath::vhost_user::fuzz::ring(data));
