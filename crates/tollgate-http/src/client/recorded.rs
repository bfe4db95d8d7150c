//! The examples of each API's public documentation, and random responses.

use super::*;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tollgate::Cost;
use tollgate_resilience::upstream::{Feedback, Refill, RemainingQuota};

/// 2024-03-01T12:00:00Z.
const NOW: u64 = 1_709_294_400;

fn received() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(NOW)
}

/// The fields of a response, one a line.
fn headers(text: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').unwrap();
        let name = HeaderName::from_bytes(name.trim().as_bytes()).unwrap();
        headers.append(name, value.trim().parse().unwrap());
    }
    headers
}

fn read(dialect: impl Dialect, status: u16, fields: &str) -> Feedback {
    let headers = headers(fields);
    let parts = ResponseParts::new(StatusCode::from_u16(status).unwrap(), &headers, received());
    dialect.feedback(&parts)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Cost, remaining, limit, reset in seconds.
type Row = (Option<Cost>, u64, Option<u64>, Option<u64>);

fn rows(feedback: &Feedback) -> Vec<Row> {
    let row = |quota: RemainingQuota| {
        let reset = quota.reset.map(|reset| reset.as_secs());
        (quota.cost, quota.remaining, quota.limit, reset)
    };
    feedback.quotas().map(row).collect()
}

/// RFC 9110, section 10.2.3, with RFC 6585, section 4.
#[test]
fn retry_after_of_the_standard() {
    for (status, fields, throttled, wait) in [
        (429, "Retry-After: 3600", true, Some(3_600)),
        (503, "Retry-After: 120", true, Some(120)),
        (503, "Retry-After: Fri, 01 Mar 2024 12:02:00 GMT", true, Some(120)),
        (503, "Retry-After: Friday, 01-Mar-24 12:02:00 GMT", true, Some(120)),
        (503, "Retry-After: Fri Mar  1 12:02:00 2024", true, Some(120)),
        (429, "retry-after-ms: 1500\nretry-after: 7", true, Some(1)),
        (429, "", true, None),
        (503, "", false, None),
        (503, "Retry-After: soon", false, None),
        (429, "Retry-After: -5", true, None),
        // A redirect and a success say when to come for something else.
        (301, "Retry-After: 120", false, None),
        (202, "Retry-After: 120", false, None),
        (500, "Retry-After: 120", false, None),
        (429, "Retry-After: 86400", true, Some(3_600)),
    ] {
        let feedback = read(Standard, status, fields);
        let seen = (feedback.throttled, feedback.retry_after.map(|wait| wait.as_secs()));
        assert_eq!(seen, (throttled, wait), "{status} {fields}");
    }
}

/// draft-ietf-httpapi-ratelimit-headers: 11 (structured fields), 7 (a dictionary), and 3 (three fields).
#[test]
fn rate_limit_fields_of_the_drafts() {
    for (fields, expected) in [
        (r#"RateLimit: "default";r=50;t=30"#, vec![(None, 50, None, Some(30))]),
        (
            "RateLimit-Policy: \"burst\";q=100;w=60,\"daily\";q=1000;w=86400\nRateLimit: \"burst\";r=50;t=30",
            vec![(None, 50, Some(100), Some(30))],
        ),
        (
            "RateLimit-Policy: \"permin\";q=50;w=60,\"perhr\";q=1000;w=3600\n\
             RateLimit: \"permin\";r=20;t=10\nRateLimit: \"perhr\";r=600;t=2000",
            vec![(None, 20, Some(50), Some(10)), (None, 600, Some(1_000), Some(2_000))],
        ),
        (
            "RateLimit-Policy: \"peruser\";q=65535;qu=\"content-bytes\";w=10;pk=:sdfjLJUOUH==:\n\
             RateLimit: \"peruser\";r=400;t=5",
            vec![(Some(CONTENT_BYTES), 400, Some(65_535), Some(5))],
        ),
        (
            "RateLimit-Policy: \"slots\";q=10;qu=\"concurrent-requests\"\nRateLimit: \"slots\";r=4",
            vec![],
        ),
        (
            "RateLimit: limit=100, remaining=50, reset=5",
            vec![(None, 50, Some(100), Some(5))],
        ),
        (
            "RateLimit-Limit: 100, 100;w=10\nRateLimit-Remaining: 0\nRateLimit-Reset: 5",
            vec![(None, 0, Some(100), Some(5))],
        ),
        (r#"RateLimit: "default";r=-4;t=30"#, vec![]),
        (r#"RateLimit: "unfinished"#, vec![]),
        (r#"RateLimit: "default""#, vec![]),
    ] {
        assert_eq!(rows(&read(Standard, 200, fields)), expected, "{fields}");
    }
}

#[test]
fn quotas_of_one_response_have_numbers_by_their_names() {
    let number = |fields| read(Standard, 200, fields).quotas().next().unwrap().number;
    let minute = number(r#"RateLimit: "permin";r=20;t=10"#);
    assert_eq!(minute, number(r#"RateLimit: "permin";r=3;t=9"#));
    assert_ne!(minute, number(r#"RateLimit: "perhr";r=20;t=10"#));
}

/// X-RateLimit fields as Twitter, Discord, Reddit, Okta and Lemlist document them: waits and epochs.
#[test]
fn older_fields_tell_waits_from_epochs() {
    for (fields, expected) in [
        (
            "x-rate-limit-limit: 900\nx-rate-limit-remaining: 899\nx-rate-limit-reset: 1709295300",
            (None, 899, Some(900), Some(900)),
        ),
        (
            "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1470173023\n\
             X-RateLimit-Reset-After: 1.5\nX-RateLimit-Bucket: abcd1234",
            (None, 0, Some(5), Some(1)),
        ),
        (
            "X-Ratelimit-Used: 2\nX-Ratelimit-Remaining: 598.0\nX-Ratelimit-Reset: 414",
            (None, 598, None, Some(414)),
        ),
        (
            "X-Rate-Limit-Limit: 600\nX-Rate-Limit-Remaining: 598\nX-Rate-Limit-Reset: 1709294460",
            (None, 598, Some(600), Some(60)),
        ),
        (
            "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 1709294430500",
            (None, 1, Some(10), Some(30)),
        ),
        (
            "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 1\nX-RateLimit-Reset: 2024-03-01T12:00:09Z",
            (None, 1, Some(10), Some(9)),
        ),
    ] {
        assert_eq!(rows(&read(Standard, 200, fields)), [expected], "{fields}");
    }
}

#[test]
fn a_refusal_without_a_wait_waits_for_what_is_spent() {
    let refused = read(Standard, 429, "RateLimit: \"permin\";r=0;t=10, \"perhr\";r=600;t=2000");
    assert_eq!(refused.retry_after, Some(secs(10)));
}

/// docs.github.com: rate limits for the REST API.
#[test]
fn fields_of_github() {
    let fields = |remaining: u64| {
        format!(
            "x-ratelimit-limit: 5000\nx-ratelimit-remaining: {remaining}\nx-ratelimit-used: 1\n\
             x-ratelimit-reset: {}\nx-ratelimit-resource: core",
            NOW + 1_800
        )
    };
    let feedback = read(GitHub, 200, &fields(4_999));
    assert_eq!(rows(&feedback), [(None, 4_999, Some(5_000), Some(1_800))]);
    assert!(!feedback.throttled);
    for (status, fields, wait) in [
        (403, fields(0), Some(1_800)),
        (429, fields(0), Some(1_800)),
        (403, format!("{}\nretry-after: 60", fields(4_000)), Some(60)),
        (429, fields(4_000), Some(60)),
        // No permission.
        (403, fields(4_000), None),
    ] {
        let refused = read(GitHub, status, &fields);
        let expected = (wait.is_some(), wait.map(secs));
        assert_eq!((refused.throttled, refused.retry_after), expected, "{status} {fields}");
    }
}

/// platform.openai.com: rate limits, fields of the response.
#[test]
fn fields_of_openai() {
    let fields = "x-ratelimit-limit-requests: 60\nx-ratelimit-limit-tokens: 150000\n\
        x-ratelimit-remaining-requests: 59\nx-ratelimit-remaining-tokens: 149984\n\
        x-ratelimit-reset-requests: 1s\nx-ratelimit-reset-tokens: 6m0s";
    let feedback = read(OpenAi, 200, fields);
    let expected = [
        (None, 59, Some(60), Some(1)),
        (Some(TOKENS), 149_984, Some(150_000), Some(360)),
    ];
    assert_eq!(rows(&feedback), expected);
    assert!(feedback.quotas().all(|quota| quota.refill == Refill::Continuous));
    let spent = "x-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 86ms";
    assert_eq!(read(OpenAi, 429, spent).retry_after, Some(Duration::from_millis(86)));
}

/// docs.anthropic.com: rate limits, fields of the response.
#[test]
fn fields_of_anthropic() {
    let fields = "anthropic-ratelimit-requests-limit: 50\nanthropic-ratelimit-requests-remaining: 0\n\
        anthropic-ratelimit-requests-reset: 2024-03-01T12:00:12Z\n\
        anthropic-ratelimit-tokens-limit: 90000\nanthropic-ratelimit-tokens-remaining: 60000\n\
        anthropic-ratelimit-tokens-reset: 2024-03-01T12:00:40Z\n\
        anthropic-ratelimit-input-tokens-limit: 50000\nanthropic-ratelimit-input-tokens-remaining: 50000\n\
        anthropic-ratelimit-input-tokens-reset: 2024-03-01T12:00:00Z\n\
        anthropic-ratelimit-output-tokens-limit: 10000\nanthropic-ratelimit-output-tokens-remaining: 8000\n\
        anthropic-ratelimit-output-tokens-reset: 2024-03-01T12:00:12.5Z";
    let feedback = read(Anthropic, 429, fields);
    let expected = [
        (None, 0, Some(50), Some(12)),
        (Some(TOKENS), 60_000, Some(90_000), Some(40)),
        (Some(INPUT_TOKENS), 50_000, Some(50_000), Some(0)),
        (Some(OUTPUT_TOKENS), 8_000, Some(10_000), Some(12)),
    ];
    assert_eq!(rows(&feedback), expected);
    assert_eq!((feedback.throttled, feedback.retry_after), (true, Some(secs(12))));
    assert_eq!(read(Anthropic, 429, "retry-after: 17").retry_after, Some(secs(17)));
    assert!(read(Anthropic, 529, "retry-after: 5").throttled);
    assert!(!read(Anthropic, 529, "").throttled);
}

/// shopify.dev: API limits, of the REST and the GraphQL Admin interface.
#[test]
fn fields_and_bodies_of_shopify() {
    let rest = read(Shopify, 200, "X-Shopify-Shop-Api-Call-Limit: 32/40");
    assert_eq!(rows(&rest), [(None, 8, Some(40), None)]);
    assert_eq!(rest.quotas().next().unwrap().refill, Refill::PerSecond(2.0));
    let refused = read(Shopify, 429, "X-Shopify-Shop-Api-Call-Limit: 40/40\nRetry-After: 2.0");
    assert_eq!((refused.throttled, refused.retry_after), (true, Some(secs(2))));

    let body = br#"{"data": {"shop": {}}, "extensions": {"cost": {
        "requestedQueryCost": 101, "actualQueryCost": 46,
        "throttleStatus": {"maximumAvailable": 1000.0, "currentlyAvailable": 954, "restoreRate": 50.0}}}}"#;
    let headers = HeaderMap::new();
    let parts = ResponseParts::new(StatusCode::OK, &headers, received()).body(body);
    let priced = Shopify.feedback(&parts);
    assert_eq!(priced.actual, Some((POINTS, 46)));
    assert_eq!(rows(&priced), [(Some(POINTS), 954, Some(1_000), None)]);
    assert_eq!(priced.quotas().next().unwrap().refill, Refill::PerSecond(50.0));
    assert!(!priced.throttled);
}

/// Texts of fields, likely and not.
fn random_text(rng: &mut impl FnMut() -> u64) -> Vec<u8> {
    const PIECES: [&str; 44] = [
        "0",
        "1",
        "9",
        "59",
        "429",
        "1709294400",
        "99999999999999999999",
        ".",
        "-",
        "+",
        ";",
        ",",
        "=",
        "\"",
        "'",
        " ",
        "/",
        ":",
        "s",
        "ms",
        "m",
        "h",
        "d",
        "µs",
        "6m0s",
        "r=",
        "t=",
        "q=",
        "w=",
        "qu=\"requests\"",
        "pk=:AA==:",
        "\"default\"",
        "limit=",
        "remaining=",
        "reset=",
        "inf",
        "NaN",
        "1e308",
        "Fri, 01 Mar 2024 12:00:00 GMT",
        "2024-03-01T12:00:00Z",
        "9999-12-31T23:59:59Z",
        "-009999-01-01T00:00:00Z",
        "32/40",
        "Sun Nov  6 08:49:37 1994",
    ];
    let mut text = Vec::new();
    let pieces = if rng().is_multiple_of(2) { 1 } else { rng() % 7 };
    for _ in 0..pieces {
        match rng() % 8 {
            0 => text.push((rng() % 256) as u8),
            _ => text.extend_from_slice(PIECES[(rng() % PIECES.len() as u64) as usize].as_bytes()),
        }
    }
    text
}

/// Bodies of JSON, whole and broken.
fn random_body(rng: &mut impl FnMut() -> u64) -> Vec<u8> {
    const NUMBERS: [&str; 9] = [
        "0",
        "1",
        "50.5",
        "-3",
        "1e300",
        "-1e-300",
        "null",
        "\"7\"",
        "18446744073709551615",
    ];
    let mut number = || NUMBERS[(rng() % NUMBERS.len() as u64) as usize];
    let text = format!(
        r#"{{"errors": [{{"extensions": {{"code": "THROTTLED"}}}}], "extensions": {{"cost": {{"requestedQueryCost": {},
        "actualQueryCost": {}, "throttleStatus": {{"maximumAvailable": {}, "currentlyAvailable": {}, "restoreRate": {}}}}}}}}}"#,
        number(),
        number(),
        number(),
        number(),
        number()
    );
    let mut body = text.into_bytes();
    if rng().is_multiple_of(4) {
        let at = (rng() % body.len() as u64) as usize;
        body[at] = (rng() % 256) as u8;
    }
    body
}

/// Random fields: no panic, and no wait beyond the cap. `TOLLGATE_HEADERS` says how many responses each dialect reads; 5,000 by default.
#[test]
fn no_response_panics_a_dialect_or_causes_a_wait_beyond_the_cap() {
    const NAMES: [&str; 34] = [
        "date",
        "retry-after",
        "retry-after-ms",
        "ratelimit",
        "ratelimit-policy",
        "ratelimit-limit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-ratelimit-reset-after",
        "x-ratelimit-resource",
        "x-rate-limit-limit",
        "x-rate-limit-remaining",
        "x-rate-limit-reset",
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
        "anthropic-ratelimit-output-tokens-remaining",
        "anthropic-ratelimit-output-tokens-reset",
        "x-shopify-shop-api-call-limit",
        "age",
    ];
    let dialects: [&dyn Dialect; 5] = [&Standard, &GitHub, &OpenAi, &Anthropic, &Shopify];
    let count = std::env::var("TOLLGATE_HEADERS").map_or(5_000, |count| count.parse().unwrap());
    let mut seed = 0x5eed_u64;
    // SplitMix64.
    let mut rng = move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = seed;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut said = [0_u64; 5];
    for _ in 0..count {
        let mut headers = HeaderMap::new();
        for _ in 0..rng() % 12 {
            let name = NAMES[(rng() % NAMES.len() as u64) as usize];
            if let Ok(value) = HeaderValue::from_bytes(&random_text(&mut rng)) {
                headers.append(name, value);
            }
        }
        let statuses = [200, 301, 403, 429, 500, 503, 529];
        let status = StatusCode::from_u16(statuses[(rng() % 7) as usize]).unwrap();
        let body = random_body(&mut rng);
        let cap = Duration::from_millis(rng() % 5_000_000);
        let received = UNIX_EPOCH + Duration::from_secs(rng() % (2 * NOW));
        let parts = ResponseParts::new(status, &headers, received).cap(cap).body(&body);
        for (dialect, said) in dialects.iter().zip(&mut said) {
            let feedback = dialect.feedback(&parts);
            assert!(
                feedback.retry_after.is_none_or(|wait| wait <= cap),
                "{feedback:?} of {parts:?}"
            );
            let within = |quota: RemainingQuota| quota.reset.is_none_or(|reset| reset <= cap);
            assert!(feedback.quotas().all(within), "{feedback:?} of {parts:?}");
            *said += u64::from(feedback.quotas().next().is_some());
        }
    }
    assert!(
        said.iter().all(|said| said * 200 > count),
        "too few responses said something: {said:?}"
    );
}
