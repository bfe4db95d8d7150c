//! The dialects of well-known APIs.

use super::dialect::{Dialect, ResponseParts};
use super::values::count;
use http::StatusCode;
use serde_json::Value;
use sfv::{BareItem, Item, ListEntry, Parser};
use std::time::Duration;
use tollgate::Cost;
use tollgate_resilience::upstream::{Feedback, Refill, RemainingQuota};

/// The cost that the dialects call tokens: `"tokens"`.
pub const TOKENS: Cost = Cost::new("tokens");
/// The cost that the dialects call input tokens: `"input-tokens"`.
pub const INPUT_TOKENS: Cost = Cost::new("input-tokens");
/// The cost that the dialects call output tokens: `"output-tokens"`.
pub const OUTPUT_TOKENS: Cost = Cost::new("output-tokens");
/// The cost that the dialects call points: `"points"`, the price of a query.
pub const POINTS: Cost = Cost::new("points");
/// The cost that the dialects call bytes: `"content-bytes"`.
pub const CONTENT_BYTES: Cost = Cost::new("content-bytes");

/// Overloaded, as some APIs answer: no status of a standard.
const OVERLOADED: u16 = 529;

/// Reads the status, and `Retry-After` of a refusal.
///
/// A 429 is a refusal. A 503 or 529 is one if it says when to come back. `Retry-After` of other responses is about something else.
/// `retry-after-ms` beats it.
fn retry_after(parts: &ResponseParts<'_>, feedback: &mut Feedback) {
    let status = parts.status().as_u16();
    if !matches!(status, 429 | 503 | OVERLOADED) {
        return;
    }
    let wait = wait_asked(parts);
    if status == 429 || wait.is_some() {
        feedback.throttled = true;
        feedback.retry_after = feedback.retry_after.max(wait);
    }
}

fn wait_asked(parts: &ResponseParts<'_>) -> Option<Duration> {
    let millis = parts.count("retry-after-ms").map(Duration::from_millis);
    millis.or_else(|| parts.wait("retry-after"))
}

/// The names of the fields of one quota, in lower case.
struct Fields {
    cost: Option<Cost>,
    limit: &'static str,
    remaining: &'static str,
    reset: &'static str,
    refill: Refill,
}

impl Fields {
    const fn of_calls(limit: &'static str, remaining: &'static str, reset: &'static str) -> Self {
        Self {
            cost: None,
            limit,
            remaining,
            reset,
            refill: Refill::AtReset,
        }
    }

    const fn bucket(cost: Option<Cost>, limit: &'static str, remaining: &'static str, reset: &'static str) -> Self {
        Self {
            cost,
            limit,
            remaining,
            reset,
            refill: Refill::Continuous,
        }
    }

    /// The quota, if the response names what is left of it.
    fn read(&self, parts: &ResponseParts<'_>) -> Option<RemainingQuota> {
        let remaining = parts.count(self.remaining)?;
        let quota = match self.cost {
            Some(cost) => RemainingQuota::of(cost, remaining),
            None => RemainingQuota::of_calls(remaining),
        };
        let mut quota = quota.refill(self.refill);
        quota.limit = parts.count(self.limit);
        quota.reset = parts.wait(self.reset);
        Some(quota)
    }
}

/// A number for a name that the upstream has chosen (FNV-1a).
fn number_of(name: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// `Retry-After`, the `RateLimit` fields of the IETF in all drafts, and the older `X-RateLimit` fields.
///
/// The `RateLimit` fields are those of draft-ietf-httpapi-ratelimit-headers, as structured fields (`"default";r=50;t=30`, from draft 8
/// on), as a dictionary (`limit=100, remaining=50, reset=5`, draft 7) and as three fields (before). `X-RateLimit-Reset` counts as a wait in
/// seconds or as an epoch by its size.
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use std::time::{Duration, SystemTime};
/// # use tollgate_http::client::{Dialect, ResponseParts, Standard};
/// let mut headers = HeaderMap::new();
/// headers.insert("ratelimit-policy", r#""burst";q=100;w=60, "daily";q=1000;w=86400"#.parse().unwrap());
/// headers.insert("ratelimit", r#""burst";r=50;t=30"#.parse().unwrap());
/// let parts = ResponseParts::new(StatusCode::OK, &headers, SystemTime::now());
/// let burst = Standard.feedback(&parts).quotas().next().unwrap();
/// assert_eq!((burst.remaining, burst.limit), (50, Some(100)));
/// assert_eq!(burst.reset, Some(Duration::from_secs(30)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Standard;

const X_RATELIMIT: [Fields; 4] = [
    // Discord names both, and the wait needs no clock.
    Fields::of_calls("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset-after"),
    Fields::of_calls("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"),
    Fields::of_calls("x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset"),
    Fields::of_calls("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"),
];

impl Dialect for Standard {
    fn read(&self, parts: &ResponseParts<'_>, feedback: &mut Feedback) {
        retry_after(parts, feedback);
        for quota in structured(parts) {
            *feedback = feedback.quota(quota);
        }
        if feedback.quotas().next().is_none() {
            let known: Vec<_> = X_RATELIMIT.iter().filter_map(|fields| fields.read(parts)).collect();
            let timed = known.iter().find(|quota| quota.reset.is_some());
            if let Some(quota) = timed.or(known.first()) {
                *feedback = feedback.quota(*quota);
            }
        }
        wait_for_spent(feedback);
    }
}

/// A refusal that names no wait waits for the quotas that are spent.
fn wait_for_spent(feedback: &mut Feedback) {
    if feedback.throttled && feedback.retry_after.is_none() {
        let spent = feedback.quotas().filter(|quota| quota.remaining == 0);
        feedback.retry_after = spent.filter_map(|quota| quota.reset).max();
    }
}

/// The quotas of `RateLimit`, with the limits and windows that `RateLimit-Policy` has for them.
fn structured(parts: &ResponseParts<'_>) -> Vec<RemainingQuota> {
    let field = |name| parts.values(name).collect::<Vec<_>>().join(", ");
    let text = field("ratelimit");
    if text.is_empty() {
        return Vec::new();
    }
    let policies = items(&field("ratelimit-policy"));
    let seconds = |item: &Item, name| whole(item, name).map(Duration::from_secs);
    let mut quotas = Vec::new();
    for limit in items(&text) {
        let Some(remaining) = whole(&limit, "r") else { continue };
        let policy = policies.iter().find(|policy| policy.bare_item == limit.bare_item);
        let unit = policy.and_then(|policy| policy.params.get("qu")?.as_string());
        let quota = match unit.map(|unit| unit.as_str()) {
            None | Some("requests") => RemainingQuota::of_calls(remaining),
            Some("content-bytes") => RemainingQuota::of(CONTENT_BYTES, remaining),
            // Concurrent requests are no quota over time, and other units are not known.
            Some(_) => continue,
        };
        let mut quota = quota.number(number_of(name_of(&limit.bare_item).as_bytes()));
        quota.reset = seconds(&limit, "t");
        quota.limit = policy.and_then(|policy| whole(policy, "q"));
        quota.window = policy.and_then(|policy| seconds(policy, "w"));
        quotas.push(quota);
    }
    quotas.extend(dictionary(&text).filter(|_| quotas.is_empty()));
    quotas
}

/// The items of a list; none if it is no list.
fn items(text: &str) -> Vec<Item> {
    let list: sfv::List = Parser::new(text).parse().unwrap_or_default();
    let items = list.into_iter().filter_map(|entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    });
    items.collect()
}

fn name_of(item: &BareItem) -> String {
    match item {
        BareItem::String(name) => name.as_str().to_owned(),
        BareItem::Token(name) => name.as_str().to_owned(),
        _ => String::new(),
    }
}

fn whole(item: &Item, name: &str) -> Option<u64> {
    number(item.params.get(name)?)
}

fn number(item: &BareItem) -> Option<u64> {
    u64::try_from(i64::from(item.as_integer()?)).ok()
}

/// The form of draft 7.
fn dictionary(text: &str) -> Option<RemainingQuota> {
    let dictionary: sfv::Dictionary = Parser::new(text).parse().ok()?;
    let get = |name: &str| match dictionary.get(name)? {
        ListEntry::Item(item) => number(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    let mut quota = RemainingQuota::of_calls(get("remaining")?);
    quota.limit = get("limit");
    quota.reset = get("reset").map(Duration::from_secs);
    Some(quota)
}

/// The dialect of GitHub's REST and GraphQL interfaces.
///
/// A 403 is a refusal as well, if it has `Retry-After`, or nothing is left. A refusal that names no wait asks for one minute. Quotas of
/// several resources are told apart.
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use std::time::{Duration, UNIX_EPOCH};
/// # use tollgate_http::client::{Dialect, GitHub, ResponseParts};
/// let mut headers = HeaderMap::new();
/// headers.insert("x-ratelimit-limit", "60".parse().unwrap());
/// headers.insert("x-ratelimit-remaining", "0".parse().unwrap());
/// headers.insert("x-ratelimit-reset", "1372700873".parse().unwrap());
/// let now = UNIX_EPOCH + Duration::from_secs(1_372_700_800);
/// let refused = GitHub.feedback(&ResponseParts::new(StatusCode::FORBIDDEN, &headers, now));
/// assert!(refused.throttled);
/// assert_eq!(refused.retry_after, Some(Duration::from_secs(73)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct GitHub;

impl Dialect for GitHub {
    fn read(&self, parts: &ResponseParts<'_>, feedback: &mut Feedback) {
        let fields = Fields::of_calls("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset");
        let resource = parts.text("x-ratelimit-resource");
        let quota = fields
            .read(parts)
            .map(|quota| quota.number(resource.map_or(0, |name| number_of(name.as_bytes()))));
        if let Some(quota) = quota {
            *feedback = feedback.quota(quota);
        }
        retry_after(parts, feedback);
        let asked = parts.wait("retry-after");
        let is_spent = quota.is_some_and(|quota| quota.remaining == 0);
        if parts.status() == StatusCode::FORBIDDEN && (asked.is_some() || is_spent) {
            feedback.throttled = true;
            feedback.retry_after = feedback.retry_after.max(asked);
        }
        wait_for_spent(feedback);
        if feedback.throttled && feedback.retry_after.is_none() {
            feedback.retry_after = Some(Duration::from_secs(60));
        }
    }
}

/// The dialect of OpenAI, and of those that speak it: requests and tokens, with durations such as `6m0s`. The costs are calls and
/// [`TOKENS`].
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use std::time::{Duration, SystemTime};
/// # use tollgate_http::client::{Dialect, OpenAi, ResponseParts, TOKENS};
/// let mut headers = HeaderMap::new();
/// headers.insert("x-ratelimit-limit-tokens", "150000".parse().unwrap());
/// headers.insert("x-ratelimit-remaining-tokens", "149984".parse().unwrap());
/// headers.insert("x-ratelimit-reset-tokens", "6m0s".parse().unwrap());
/// let parts = ResponseParts::new(StatusCode::OK, &headers, SystemTime::now());
/// let tokens = OpenAi.feedback(&parts).quotas().next().unwrap();
/// assert_eq!((tokens.cost, tokens.remaining), (Some(TOKENS), 149_984));
/// assert_eq!(tokens.reset, Some(Duration::from_secs(360)));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenAi;

const OPEN_AI: [Fields; 2] = [
    Fields::bucket(
        None,
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
    ),
    Fields::bucket(
        Some(TOKENS),
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ),
];

impl Dialect for OpenAi {
    fn read(&self, parts: &ResponseParts<'_>, feedback: &mut Feedback) {
        read_all(&OPEN_AI, parts, feedback);
    }
}

fn read_all(fields: &[Fields], parts: &ResponseParts<'_>, feedback: &mut Feedback) {
    retry_after(parts, feedback);
    for quota in fields.iter().filter_map(|fields| fields.read(parts)) {
        *feedback = feedback.quota(quota);
    }
    wait_for_spent(feedback);
}

/// The dialect of Anthropic: requests, tokens, input and output tokens, with instants of RFC 3339. The costs are calls, [`TOKENS`],
/// [`INPUT_TOKENS`] and [`OUTPUT_TOKENS`]. A 529 is a refusal if it says when to come back.
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use std::time::{Duration, UNIX_EPOCH};
/// # use tollgate_http::client::{Anthropic, Dialect, ResponseParts};
/// let mut headers = HeaderMap::new();
/// headers.insert("anthropic-ratelimit-requests-limit", "50".parse().unwrap());
/// headers.insert("anthropic-ratelimit-requests-remaining", "49".parse().unwrap());
/// headers.insert("anthropic-ratelimit-requests-reset", "2024-01-01T00:00:01Z".parse().unwrap());
/// let new_year = UNIX_EPOCH + Duration::from_secs(1_704_067_200);
/// let parts = ResponseParts::new(StatusCode::OK, &headers, new_year);
/// let requests = Anthropic.feedback(&parts).quotas().next().unwrap();
/// assert_eq!((requests.remaining, requests.reset), (49, Some(Duration::from_secs(1))));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Anthropic;

const ANTHROPIC: [Fields; 4] = [
    Fields::bucket(
        None,
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
    ),
    Fields::bucket(
        Some(TOKENS),
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
    ),
    Fields::bucket(
        Some(INPUT_TOKENS),
        "anthropic-ratelimit-input-tokens-limit",
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
    ),
    Fields::bucket(
        Some(OUTPUT_TOKENS),
        "anthropic-ratelimit-output-tokens-limit",
        "anthropic-ratelimit-output-tokens-remaining",
        "anthropic-ratelimit-output-tokens-reset",
    ),
];

impl Dialect for Anthropic {
    fn read(&self, parts: &ResponseParts<'_>, feedback: &mut Feedback) {
        read_all(&ANTHROPIC, parts, feedback);
    }
}

/// The dialect of Shopify: the price asked and actual of a GraphQL query, in [`POINTS`], and the call limit of the REST interface.
///
/// The prices stand in the body, which the response needs then: [`ResponseParts::body`]. A throttled query has the status 200, and waits
/// until its price is restored.
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use std::time::{Duration, SystemTime};
/// # use tollgate_http::client::{Dialect, POINTS, ResponseParts, Shopify};
/// let body = br#"{"errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}],
///     "extensions": {"cost": {"requestedQueryCost": 70, "actualQueryCost": null,
///     "throttleStatus": {"maximumAvailable": 1000, "currentlyAvailable": 20, "restoreRate": 50}}}}"#;
/// let headers = HeaderMap::new();
/// let parts = ResponseParts::new(StatusCode::OK, &headers, SystemTime::now()).body(body);
/// let refused = Shopify.feedback(&parts);
/// assert!(refused.throttled);
/// assert_eq!(refused.retry_after, Some(Duration::from_secs(1)), "for 50 points at 50 per second");
/// assert_eq!(refused.quotas().next().unwrap().cost, Some(POINTS));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Shopify;

impl Dialect for Shopify {
    fn read(&self, parts: &ResponseParts<'_>, feedback: &mut Feedback) {
        retry_after(parts, feedback);
        let calls = parts
            .text("x-shopify-shop-api-call-limit")
            .and_then(|text| text.split_once('/'));
        if let Some((Some(used), Some(limit))) = calls.map(|(used, limit)| (count(used), count(limit))) {
            // The documented plans all restore a twentieth of their bucket per second.
            let rate = Refill::PerSecond(limit as f64 / 20.0);
            let left = RemainingQuota::of_calls(limit.saturating_sub(used)).limit(limit);
            *feedback = feedback.quota(left.refill(rate));
        }
        let body = parts
            .bytes()
            .and_then(|body| serde_json::from_slice::<Value>(body).ok());
        if let Some(body) = body {
            price(&body, feedback);
        }
    }
}

/// A number of points: not negative, and finite.
fn points(value: &Value) -> Option<f64> {
    value.as_f64().filter(|points| *points >= 0.0 && points.is_finite())
}

fn price(body: &Value, feedback: &mut Feedback) {
    let cost = &body["extensions"]["cost"];
    let status = &cost["throttleStatus"];
    let is_throttled = |error: &Value| error["extensions"]["code"] == "THROTTLED";
    let throttled = body["errors"]
        .as_array()
        .is_some_and(|errors| errors.iter().any(is_throttled));
    let left = points(&status["currentlyAvailable"]);
    let rate = points(&status["restoreRate"]);
    if let Some(actual) = points(&cost["actualQueryCost"]) {
        feedback.actual = Some((POINTS, actual.ceil() as u64));
    }
    if let Some(left) = left {
        let mut quota = RemainingQuota::of(POINTS, left as u64).refill(Refill::Continuous);
        quota.limit = points(&status["maximumAvailable"]).map(|limit| limit as u64);
        if let Some(rate) = rate {
            quota.refill = Refill::PerSecond(rate);
        }
        *feedback = feedback.quota(quota);
    }
    if throttled {
        feedback.throttled = true;
        let asked = points(&cost["requestedQueryCost"]);
        if let (Some(asked), Some(left), Some(rate)) = (asked, left, rate) {
            let wait = Duration::try_from_secs_f64((asked - left).max(0.0) / rate);
            feedback.retry_after = feedback.retry_after.max(Some(wait.unwrap_or(Duration::MAX)));
        }
    }
}
