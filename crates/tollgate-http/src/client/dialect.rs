//! The trait of a dialect, and the response that it reads.

use super::values::{When, count, when};
use http::{HeaderMap, Response, StatusCode};
use std::time::{Duration, SystemTime};
use tollgate_resilience::upstream::Feedback;

/// The longest wait that a response can cause, unless it is set otherwise: one hour.
pub const DEFAULT_CAP: Duration = Duration::from_secs(3_600);

/// Reads what a response says about the limits of an upstream.
///
/// A dialect is a pure function: it keeps nothing, reads no clock, and never panics, whatever the upstream sends. A closure is a dialect,
/// and so is a pair of them, read in order.
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use std::time::{Duration, SystemTime};
/// # use tollgate_resilience::upstream::{Feedback, RemainingQuota};
/// # use tollgate_http::client::{Dialect, ResponseParts, Standard};
/// let credits = |parts: &ResponseParts<'_>, feedback: &mut Feedback| {
///     if let Some(left) = parts.count("x-credits-left") {
///         *feedback = feedback.quota(RemainingQuota::of_calls(left));
///     }
/// };
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", "30".parse().unwrap());
/// headers.insert("x-credits-left", "0".parse().unwrap());
/// let parts = ResponseParts::new(StatusCode::TOO_MANY_REQUESTS, &headers, SystemTime::now());
/// let feedback = (Standard, credits).feedback(&parts);
/// assert_eq!(feedback.retry_after, Some(Duration::from_secs(30)));
/// assert_eq!(feedback.quotas().count(), 1);
/// ```
pub trait Dialect: Send + Sync + 'static {
    /// Adds what the response says to `feedback`.
    fn read(&self, parts: &ResponseParts<'_>, feedback: &mut Feedback);

    /// What the response says. No wait and no reset is longer than the [cap](ResponseParts::cap).
    fn feedback(&self, parts: &ResponseParts<'_>) -> Feedback {
        let mut feedback = Feedback::default();
        self.read(parts, &mut feedback);
        feedback.capped(parts.cap)
    }
}

impl<F: Fn(&ResponseParts<'_>, &mut Feedback) + Send + Sync + 'static> Dialect for F {
    fn read(&self, parts: &ResponseParts<'_>, feedback: &mut Feedback) {
        self(parts, feedback);
    }
}

impl<A: Dialect, B: Dialect> Dialect for (A, B) {
    fn read(&self, parts: &ResponseParts<'_>, feedback: &mut Feedback) {
        self.0.read(parts, feedback);
        self.1.read(parts, feedback);
    }
}

/// The parts of a response that a dialect may read, and the time at which it was received.
///
/// # Clocks
/// A date is compared with the field `Date` of the same response, so that a local clock that is set wrongly cancels out. If that yields a
/// wait below zero or beyond the cap, the time of receipt is taken instead. If that is no better, the wait is cut to the range from zero to
/// the cap.
///
/// ```
/// # use http::{HeaderMap, StatusCode};
/// # use std::time::{Duration, UNIX_EPOCH};
/// # use tollgate_http::client::{Dialect, ResponseParts, Standard};
/// let mut headers = HeaderMap::new();
/// headers.insert("date", "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
/// headers.insert("retry-after", "Sun, 06 Nov 1994 08:49:42 GMT".parse().unwrap());
/// // The local clock has been reset to 1970.
/// let parts = ResponseParts::new(StatusCode::SERVICE_UNAVAILABLE, &headers, UNIX_EPOCH);
/// assert_eq!(Standard.feedback(&parts).retry_after, Some(Duration::from_secs(5)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ResponseParts<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
    trailers: Option<&'a HeaderMap>,
    body: Option<&'a [u8]>,
    received: SystemTime,
    cap: Duration,
}

impl<'a> ResponseParts<'a> {
    /// A response without a body, received at `received` by the local time of day, with the [default cap](DEFAULT_CAP).
    pub fn new(status: StatusCode, headers: &'a HeaderMap, received: SystemTime) -> Self {
        Self {
            status,
            headers,
            trailers: None,
            body: None,
            received,
            cap: DEFAULT_CAP,
        }
    }

    /// The head of `response`.
    ///
    /// ```
    /// # use http::Response;
    /// # use std::time::{Duration, SystemTime};
    /// # use tollgate_http::client::ResponseParts;
    /// let response = Response::builder()
    ///     .status(429)
    ///     .header("retry-after", "30")
    ///     .header("x-ratelimit-remaining", "7")
    ///     .body(())?;
    /// let parts = ResponseParts::of(&response, SystemTime::UNIX_EPOCH).cap(Duration::from_secs(10)).body(b"busy");
    /// assert_eq!((parts.count("x-ratelimit-remaining"), parts.text("retry-after")), (Some(7), Some("30")));
    /// assert_eq!(parts.wait("retry-after"), Some(Duration::from_secs(10)));
    /// assert_eq!(parts.bytes(), Some(&b"busy"[..]));
    /// # Ok::<(), http::Error>(())
    /// ```
    pub fn of<B>(response: &'a Response<B>, received: SystemTime) -> Self {
        Self::new(response.status(), response.headers(), received)
    }

    /// Sets the longest wait that the response can cause.
    #[must_use]
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Adds the body, for a dialect that reads it.
    #[must_use]
    pub fn body(mut self, body: &'a [u8]) -> Self {
        self.body = Some(body);
        self
    }

    /// Adds the trailers. A field that the head has not is looked up there.
    #[must_use]
    pub fn trailers(mut self, trailers: &'a HeaderMap) -> Self {
        self.trailers = Some(trailers);
        self
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The bytes of the body, if they are known.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        self.body
    }

    /// The first value of a field, if it is text. `name` is in lower case.
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.values(name).next()
    }

    /// All values of a field that are text.
    pub(super) fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let mut maps = std::iter::once(self.headers).chain(self.trailers);
        let found = maps.find(|map| map.contains_key(name));
        let values = found.into_iter().flat_map(move |map| map.get_all(name).iter());
        values.filter_map(|value| value.to_str().ok())
    }

    /// The first value of a field as a number of units. A fraction is cut off.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.text(name).and_then(count)
    }

    /// The first value of a field as a time from now, at most the cap: seconds, a duration such as `6m0s`, an epoch, RFC 3339, or a date
    /// of HTTP. A plain number from 10^9 on is an epoch, in seconds or in the parts of a second that its size shows.
    pub fn wait(&self, name: &str) -> Option<Duration> {
        self.text(name).and_then(|text| self.wait_of(text))
    }

    /// The same for a text from elsewhere.
    pub fn wait_of(&self, text: &str) -> Option<Duration> {
        Some(match when(text)? {
            When::After(wait) => wait.min(self.cap),
            When::At(instant) => self.until(instant),
        })
    }

    /// The time until `instant`, by the clock that makes most sense of it.
    fn until(&self, instant: SystemTime) -> Duration {
        let date = self.text("date").and_then(|date| httpdate::parse_http_date(date).ok());
        let by = |clock: SystemTime| instant.duration_since(clock).ok().filter(|wait| *wait <= self.cap);
        let sane = date.and_then(by).or_else(|| by(self.received));
        sane.unwrap_or(match instant > date.unwrap_or(self.received) {
            true => self.cap,
            false => Duration::ZERO,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    const NOON: &str = "Fri, 01 Mar 2024 12:00:00 GMT";

    fn until(date: Option<&str>, skew: i64, text: &str) -> Duration {
        let mut headers = HeaderMap::new();
        if let Some(date) = date {
            headers.insert("date", date.parse().unwrap());
        }
        let noon = httpdate::parse_http_date(NOON).unwrap();
        let local = match u64::try_from(skew) {
            Ok(later) => noon + Duration::from_secs(later),
            Err(_) => noon - Duration::from_secs(skew.unsigned_abs()),
        };
        ResponseParts::new(StatusCode::TOO_MANY_REQUESTS, &headers, local)
            .wait_of(text)
            .unwrap()
    }

    #[test]
    fn a_wrong_local_clock_cancels_out_by_the_date_of_the_response() {
        for skew in [-86_400 * 365, -600, 0, 600, 86_400 * 365] {
            let wait = until(Some(NOON), skew, "Fri, 01 Mar 2024 12:00:07 GMT");
            assert_eq!(wait, Duration::from_secs(7), "a skew of {skew} s");
        }
    }

    #[test]
    fn a_date_that_makes_no_sense_gives_way_to_the_local_clock() {
        for date in [
            "Thu, 01 Jan 1970 00:00:00 GMT",
            "Wed, 01 Mar 2124 12:00:00 GMT",
            "yesterday",
        ] {
            let wait = until(Some(date), 0, "Fri, 01 Mar 2024 12:00:07 GMT");
            assert_eq!(wait, Duration::from_secs(7), "{date}");
        }
        assert_eq!(until(None, 2, "Fri, 01 Mar 2024 12:00:07 GMT"), Duration::from_secs(5));
    }

    #[test]
    fn an_instant_that_no_clock_makes_sense_of_is_cut_to_zero_or_the_cap() {
        assert_eq!(until(Some(NOON), 0, "Sun, 01 Mar 2054 12:00:00 GMT"), DEFAULT_CAP);
        assert_eq!(until(Some(NOON), 0, "Tue, 01 Mar 1994 12:00:00 GMT"), Duration::ZERO);
        assert_eq!(until(None, 0, "99999999999999999999"), DEFAULT_CAP);
    }

    #[test]
    fn a_field_is_looked_up_in_the_trailers_if_the_head_has_it_not() {
        let (mut head, mut trailers) = (HeaderMap::new(), HeaderMap::new());
        head.insert("x-left", "3".parse().unwrap());
        trailers.insert("x-left", "2".parse().unwrap());
        trailers.insert("x-wait", "1s".parse().unwrap());
        let parts = ResponseParts::new(StatusCode::OK, &head, UNIX_EPOCH).trailers(&trailers);
        assert_eq!(
            (parts.count("x-left"), parts.wait("x-wait")),
            (Some(3), Some(Duration::from_secs(1)))
        );
    }
}
