//! The dialect of gRPC: `RetryInfo` in the details of a status, and the push-back of retries.

use super::dialect::{Dialect, ResponseParts};
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use std::time::Duration;
use tollgate_resilience::upstream::Feedback;

/// The dialect of gRPC servers.
///
/// `RESOURCE_EXHAUSTED` is a refusal, and `UNAVAILABLE` is one if it says when to come back. That is `google.rpc.RetryInfo` among the
/// details of the status, or `grpc-retry-pushback-ms`; the longer counts if there are both.
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use std::time::{Duration, SystemTime};
/// # use tollgate_http::client::{Dialect, Grpc, ResponseParts};
/// let (head, mut trailers) = (HeaderMap::new(), HeaderMap::new());
/// trailers.insert("grpc-status", "8".parse().unwrap());
/// trailers.insert("grpc-retry-pushback-ms", "1500".parse().unwrap());
/// let parts = ResponseParts::new(StatusCode::OK, &head, SystemTime::now()).trailers(&trailers);
/// let feedback = Grpc.feedback(&parts);
/// assert!(feedback.throttled);
/// assert_eq!(feedback.retry_after, Some(Duration::from_millis(1_500)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

impl Dialect for Grpc {
    fn read(&self, parts: &ResponseParts<'_>, feedback: &mut Feedback) {
        let code = parts.text("grpc-status").and_then(|code| code.parse::<u32>().ok());
        if !matches!(code, Some(8 | 14)) {
            return;
        }
        let pushed_back = parts.count("grpc-retry-pushback-ms").map(Duration::from_millis);
        let details = parts.text("grpc-status-details-bin").and_then(decoded);
        let wait = pushed_back.max(details.and_then(|details| retry_delay(&details)));
        if code == Some(8) || wait.is_some() {
            feedback.throttled = true;
            feedback.retry_after = feedback.retry_after.max(wait);
        }
    }
}

/// Base64, with padding or without, as gRPC sends binary fields.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let padding = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    GeneralPurpose::new(&STANDARD, padding).decode(text).ok()
}

/// The fields of a message of Protocol Buffers: numbers, and bytes. It ends where they are broken.
struct Message<'a>(&'a [u8]);

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl Message<'_> {
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }
}

impl<'a> Iterator for Message<'a> {
    type Item = (u64, Field<'a>);

    fn next(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = self.varint()?;
        let length = match tag & 7 {
            0 => return Some((tag >> 3, Field::Number(self.varint()?))),
            1 => 8,
            2 => usize::try_from(self.varint()?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some((tag >> 3, Field::Bytes(bytes)))
    }
}

fn bytes_of(message: &[u8], field: u64) -> impl Iterator<Item = &[u8]> {
    Message(message).filter_map(move |(number, value)| match value {
        Field::Bytes(bytes) if number == field => Some(bytes),
        _ => None,
    })
}

fn number_of(message: &[u8], field: u64) -> Option<u64> {
    Message(message).find_map(|(number, value)| match value {
        Field::Number(value) if number == field => Some(value),
        _ => None,
    })
}

/// The delay of `RetryInfo` in a `google.rpc.Status`: `details` (3) are of type `Any`, whose type (1) and value (2) it has; its delay (1)
/// has seconds (1) and nanoseconds (2).
fn retry_delay(status: &[u8]) -> Option<Duration> {
    let is_retry_info = |any: &&[u8]| bytes_of(any, 1).any(|name| name == b"type.googleapis.com/google.rpc.RetryInfo");
    let info = bytes_of(status, 3).find(is_retry_info)?;
    let delay = bytes_of(bytes_of(info, 2).next()?, 1).next()?;
    let seconds = i64::try_from(number_of(delay, 1).unwrap_or(0)).ok()?;
    let nanos = u32::try_from(number_of(delay, 2).unwrap_or(0)).ok()?;
    (nanos < 1_000_000_000).then(|| Duration::new(seconds.unsigned_abs(), nanos))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, StatusCode};
    use std::time::SystemTime;

    /// A length-delimited field.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    /// The status 8 with an error of quota before the delay of 3.5 s.
    fn status() -> Vec<u8> {
        let any = |name: &str, value: &[u8]| {
            let name = format!("type.googleapis.com/google.rpc.{name}");
            field(3, &[field(1, name.as_bytes()), field(2, value)].concat())
        };
        // 500,000,000 as a varint.
        let delay = field(1, &[0x08, 3, 0x10, 0x80, 0xca, 0xb5, 0xee, 0x01]);
        let details = [any("QuotaFailure", &[]), any("RetryInfo", &delay)].concat();
        [vec![0x08, 8], field(2, b"quota exceeded"), details].concat()
    }

    fn read(fields: &[(&'static str, &str)]) -> Feedback {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.insert(*name, value.parse().unwrap());
        }
        Grpc.feedback(&ResponseParts::new(StatusCode::OK, &headers, SystemTime::now()))
    }

    #[test]
    fn retry_info_is_read_from_the_details_of_a_status() {
        let delay = Some(Duration::from_millis(3_500));
        assert_eq!(retry_delay(&status()), delay);
        let text = base64::engine::general_purpose::STANDARD_NO_PAD.encode(status());
        for (code, throttled) in [("8", true), ("14", true), ("0", false), ("5", false), ("x", false)] {
            let feedback = read(&[("grpc-status", code), ("grpc-status-details-bin", &text)]);
            assert_eq!(
                (feedback.throttled, feedback.retry_after),
                (throttled, delay.filter(|_| throttled))
            );
        }
        assert!(read(&[("grpc-status", "8")]).throttled && !read(&[("grpc-status", "14")]).throttled);
        let negative = read(&[("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")]);
        assert_eq!((negative.throttled, negative.retry_after), (true, None));
    }

    /// Random statuses, changed at several places, cut, or of random bytes, and random push-backs: no panic, and no wait beyond the cap.
    /// `TOLLGATE_HEADERS` says how many; 5,000 by default.
    #[test]
    fn no_response_panics_the_dialect_or_causes_a_wait_beyond_the_cap() {
        let count = std::env::var("TOLLGATE_HEADERS").map_or(5_000, |count| count.parse().unwrap());
        let mut seed = 0x5eed_u64;
        // SplitMix64.
        let mut rng = move |below: u64| {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % below
        };
        let whole = status();
        let mut paused = 0;
        for _ in 0..count {
            let mut bytes = match rng(3) {
                0 => (0..rng(60)).map(|_| rng(256) as u8).collect(),
                _ => whole.clone(),
            };
            for _ in 0..rng(4) {
                if let Some(at) = rng(u64::MAX).checked_rem(bytes.len() as u64) {
                    bytes[at as usize] = rng(256) as u8;
                }
            }
            if rng(4) == 0 {
                bytes.truncate(rng(bytes.len() as u64 + 1) as usize);
            }
            let mut details = base64::engine::general_purpose::STANDARD_NO_PAD.encode(&bytes);
            if rng(8) == 0 {
                details.push(['=', 'A', '-', '!'][rng(4) as usize]);
            }
            let code = ["8", "14", "0", "", "99999999999"][rng(5) as usize];
            let numbers = ["0", "1500", "-1", "x", "18446744073709551615", "99999999999999999999"];
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", code.parse().unwrap());
            headers.insert("grpc-status-details-bin", details.parse().unwrap());
            if rng(3) == 0 {
                let number = numbers[rng(numbers.len() as u64) as usize];
                headers.insert("grpc-retry-pushback-ms", number.parse().unwrap());
            }
            let cap = Duration::from_millis(rng(10_000));
            let parts = ResponseParts::new(StatusCode::OK, &headers, SystemTime::now()).cap(cap);
            let feedback = Grpc.feedback(&parts);
            assert!(feedback.retry_after.is_none_or(|wait| wait <= cap), "{feedback:?}");
            paused += u64::from(feedback.retry_after.is_some());
        }
        assert!(paused * 10 > count, "only {paused} asked for a wait");
    }

    #[test]
    fn a_status_that_is_cut_or_changed_anywhere_is_no_panic() {
        let whole = status();
        for end in 0..whole.len() {
            assert!(retry_delay(&whole[..end]).is_none_or(|delay| delay <= Duration::from_millis(3_500)));
            for byte in 0..=255 {
                let mut changed = whole.clone();
                changed[end] = byte;
                let _ = retry_delay(&changed);
            }
        }
    }
}
