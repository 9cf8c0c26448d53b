//! What users type: whatever is taken is the same when it is written down and read again.
#![no_main]

use berth_types::{
    ByteSize, MachineName,
    egress::{HostName, HostPattern},
};
use std::{fmt, str::FromStr};

fn again<T: FromStr + fmt::Display + fmt::Debug + PartialEq>(text: &str)
where
    T::Err: fmt::Debug,
{
    let Ok(value) = text.parse::<T>() else { return };
    assert_eq!(value.to_string().parse::<T>().unwrap(), value);
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(size) = text.parse::<ByteSize>() {
        // Shown with one decimal, rounded down.
        assert!(size.to_string().parse::<ByteSize>().unwrap() <= size);
    }
    again::<MachineName>(text);
    again::<HostName>(text);
    again::<HostPattern>(text);
});
