//! What came back, and whether that is good enough.

use std::time::Duration;

/// How one request ended.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    Admitted {
        after: Duration,
        cached: bool,
    },
    /// By 429 or 503, with what `Retry-After` says.
    Refused {
        rate: bool,
        retry: Option<u64>,
    },
    Failed(String),
}

impl End {
    /// By the head of the response.
    pub(crate) fn of(status: u16, retry_after: Option<&str>, cached: bool, after: Duration) -> Self {
        match status {
            200 => Self::Admitted { after, cached },
            429 | 503 => Self::Refused {
                rate: status == 429,
                retry: retry_after.and_then(|seconds| seconds.parse().ok()),
            },
            status => Self::Failed(format!("status {status}")),
        }
    }
}

/// How all of them ended.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// In microseconds.
    latencies: Vec<u64>,
    pub(crate) cached: u64,
    pub(crate) by_rate: u64,
    pub(crate) by_capacity: u64,
    /// Refusals without a `Retry-After` of a second or more.
    pub(crate) untold: u64,
    pub(crate) failed: u64,
    pub(crate) first_failure: Option<String>,
}

impl Tally {
    pub(crate) fn add(&mut self, end: End) {
        match end {
            End::Admitted { after, cached } => {
                self.latencies.push(after.as_micros() as u64);
                self.cached += u64::from(cached);
            }
            End::Refused { rate, retry } => {
                *if rate { &mut self.by_rate } else { &mut self.by_capacity } += 1;
                self.untold += u64::from(retry.is_none_or(|seconds| seconds == 0));
            }
            End::Failed(why) => {
                self.failed += 1;
                self.first_failure.get_or_insert(why);
            }
        }
    }

    pub(crate) fn admitted(&self) -> u64 {
        self.latencies.len() as u64
    }

    pub(crate) fn all(&self) -> u64 {
        self.admitted() + self.by_rate + self.by_capacity + self.failed
    }

    /// `count` in percent of all.
    pub(crate) fn share(&self, count: u64) -> f64 {
        100.0 * count as f64 / self.all().max(1) as f64
    }

    /// The latency that this share of the admitted did not exceed.
    pub(crate) fn quantile(&mut self, share: f64) -> Duration {
        self.latencies.sort_unstable();
        let rank = (self.latencies.len() as f64 * share) as usize;
        let micros = self.latencies.get(rank.min(self.latencies.len().saturating_sub(1)));
        Duration::from_micros(micros.copied().unwrap_or(0))
    }
}

/// What became of requests that came when `Retry-After` had said.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Promises {
    /// After a 429: admitted.
    pub(crate) kept: u64,
    /// After a 429: refused by the rate again, although no other client has its tokens.
    pub(crate) broken: u64,
    /// After a 429: admitted by the rate, and refused for want of a permit.
    pub(crate) elsewhere: u64,
    /// After a 503: admitted.
    pub(crate) let_in: u64,
    /// After a 503: refused again, for what reason ever, although a place was kept.
    pub(crate) sent_away: u64,
    /// After either: no answer, or one that is no refusal.
    pub(crate) failed: u64,
}

impl Promises {
    /// A client came back after a 429 (`rate`) or a 503.
    pub(crate) fn add(&mut self, rate: bool, end: &End) {
        let count = match (rate, end) {
            (_, End::Failed(_)) => &mut self.failed,
            (true, End::Admitted { .. }) => &mut self.kept,
            (true, End::Refused { rate: true, .. }) => &mut self.broken,
            (true, End::Refused { .. }) => &mut self.elsewhere,
            (false, End::Admitted { .. }) => &mut self.let_in,
            (false, End::Refused { .. }) => &mut self.sent_away,
        };
        *count += 1;
    }

    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            kept: self.kept + other.kept,
            broken: self.broken + other.broken,
            elsewhere: self.elsewhere + other.elsewhere,
            let_in: self.let_in + other.let_in,
            sent_away: self.sent_away + other.sent_away,
            failed: self.failed + other.failed,
        }
    }
}

/// The bars that were missed, in words.
pub(crate) fn missed(tally: &Tally, promises: &Promises, peak: u64, limit: u64) -> Vec<String> {
    let mut missed = Vec::new();
    let mut bar = |good: bool, why: String| {
        if !good {
            missed.push(why);
        }
    };
    let failed = tally.share(tally.failed);
    bar(failed < 0.2, format!("{failed:.3} % have failed"));
    bar(tally.admitted() > 0, "no request was admitted".into());
    bar(peak > 0 && peak <= limit, format!("{peak} in flight, of {limit}"));
    bar(
        tally.untold == 0,
        format!("{} refusals without Retry-After", tally.untold),
    );
    bar(promises.broken == 0, format!("{} promises broken", promises.broken));
    bar(
        promises.sent_away == 0,
        format!(
            "{} that honoured the Retry-After of a 503 were refused again",
            promises.sent_away
        ),
    );
    bar(
        promises.failed == 0,
        format!("{} that honoured Retry-After had no answer", promises.failed),
    );
    bar(promises.kept > 0, "no promise was kept".into());
    missed
}
