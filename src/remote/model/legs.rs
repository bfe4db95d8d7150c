//! The legs of one key, taken from together: the reference of [`Backend::step`](crate::remote::Backend::step).

use super::bucket::{Bucket, Fill};
use super::{micros, segment};
use crate::remote::backend::Rule;
use crate::remote::step::{KeyLeg, Step, StepRefusal, StepReply};
use std::collections::BTreeMap;
use std::time::Duration;

/// The rates and windows of a key, by the names of the legs.
///
/// ```
/// use std::time::Duration;
/// use tollgate::remote::model::KeyLegs;
/// use tollgate::remote::{KeyLeg, Rule, Step, StepRefusal};
///
/// let rate = |quota: &str| Ok::<_, tollgate::QuotaError>(Rule::Rate { quota: quota.parse()? });
/// let legs = [
///     KeyLeg { name: "requests".into(), rule: rate("1/s burst 9")? },
///     KeyLeg { name: "tokens".into(), rule: rate("10/s burst 100")? },
/// ];
/// let mut step = Step::new(7, 1, Duration::from_secs(30));
/// step.takes = vec![[1, 60, 0, 0, 0, 0, 0, 0], [1, 50, 0, 0, 0, 0, 0, 0]];
///
/// let mut key = KeyLegs::default();
/// let reply = key.step(1_000_000, &legs, &step);
/// let refusal = StepRefusal { leg: 1, after: Some(Duration::from_secs(1)) };
/// assert_eq!(reply.takes, [Ok(()), Err(refusal)]);
/// // The same step again takes nothing more.
/// assert_eq!(key.step(1_100_000, &legs, &step), reply);
/// # Ok::<(), tollgate::QuotaError>(())
/// ```
#[derive(Debug, Default)]
pub struct KeyLegs {
    legs: BTreeMap<Box<str>, Counts>,
    /// The last step of each client that changed something: when it is forgotten, its number and its reply.
    replies: BTreeMap<u64, (u64, u64, StepReply)>,
    now: u64,
}

/// What was taken of one leg.
#[derive(Clone, Debug)]
enum Counts {
    /// With the instant since when it counts by this rule. All that was taken before it has come back, or was taken by another rule.
    Rate(Bucket, Fill, u64),
    /// The length of a segment in microseconds, and the units by its number. A segment counts until all of it has left the window.
    Window(u64, BTreeMap<u64, u64>),
}

/// One leg during a step.
struct Leg<'a> {
    name: &'a str,
    rule: &'a Rule,
    counts: Counts,
}

impl KeyLegs {
    /// Carries out `step` at the instant `now`, in microseconds.
    pub fn step(&mut self, now: u64, legs: &[KeyLeg], step: &Step) -> StepReply {
        self.now = self.now.max(now);
        let now = self.now;
        self.replies.retain(|_, reply| reply.0 > now);
        match self.replies.get(&step.client) {
            Some((_, seq, reply)) if *seq == step.seq => return reply.clone(),
            // A late copy of a step that was answered, or given up: the client awaits no reply.
            Some((_, seq, _)) if *seq > step.seq => {
                let refusal = StepRefusal { leg: 0, after: None };
                let takes = step.takes.iter().map(|_| Err(refusal)).collect();
                return StepReply { at: now, takes };
            }
            _ => {}
        }
        // Corrections alone are of admissions by a rule that may be an old one.
        let adopts = !step.takes.is_empty();
        let before = legs.iter().map(|leg| self.legs.get(&leg.name).cloned());
        let begun = legs
            .iter()
            .zip(before)
            .map(|(leg, before)| Leg::begin(leg, before, adopts, now));
        let mut legs: Vec<Leg<'_>> = begun.collect();
        for correction in &step.corrections {
            for (leg, (&charged, &actual)) in legs.iter_mut().zip(correction.charged.iter().zip(&correction.actual)) {
                leg.correct(correction.at, charged, actual, now);
            }
        }
        let takes: Vec<_> = step.takes.iter().map(|units| take(&mut legs, units, now)).collect();
        let reply = StepReply { at: now, takes };
        if step.corrections.is_empty() && !reply.takes.iter().any(Result::is_ok) {
            return reply;
        }
        for Leg { name, counts, .. } in legs {
            if counts.is_fresh(now) {
                self.legs.remove(name);
            } else {
                self.legs.insert(name.into(), counts);
            }
        }
        let until = now.saturating_add(micros(step.remember));
        self.replies.insert(step.client, (until, step.seq, reply.clone()));
        reply
    }

    /// True when it may be forgotten without a loss.
    pub fn is_empty(&self, now: u64) -> bool {
        let now = self.now.max(now);
        self.replies.values().all(|reply| reply.0 <= now) && self.legs.values().all(|counts| counts.is_fresh(now))
    }
}

/// Takes from all legs, or from none. The refusal names the leg that admits last.
fn take(legs: &mut [Leg<'_>], units: &[u64], now: u64) -> Result<(), StepRefusal> {
    let mut refusal: Option<StepRefusal> = None;
    for (leg, (counted, &n)) in legs.iter().zip(units).enumerate() {
        let Some(after) = counted.wait(n, now) else {
            return Err(StepRefusal { leg, after: None });
        };
        let after = Some(Duration::from_micros(after));
        if after > refusal.as_ref().map_or(Some(Duration::ZERO), |other| other.after) {
            refusal = Some(StepRefusal { leg, after });
        }
    }
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    for (leg, &n) in legs.iter_mut().zip(units) {
        leg.add(n, now);
    }
    Ok(())
}

impl<'a> Leg<'a> {
    /// The leg by its present rule, if the step `adopts` that. What was taken by another rule stays taken.
    fn begin(leg: &'a KeyLeg, before: Option<Counts>, adopts: bool, now: u64) -> Self {
        let counts = match (before, &leg.rule) {
            (Some(mut before), _) if !adopts => {
                before.advance(now);
                before
            }
            (Some(Counts::Rate(mut bucket, before, mut since)), Rule::Rate { quota }) => {
                let fill = Fill::of(quota).unwrap_or(before);
                // Time until now has passed by the rule before.
                bucket.advance(&before, now);
                if fill != before {
                    bucket.convert(&before, &fill);
                    since = now;
                }
                Counts::Rate(bucket, fill, since)
            }
            (_, Rule::Rate { quota }) => {
                let fill = Fill::of(quota).unwrap_or(Fill {
                    price: 1,
                    gain: 1,
                    brim: 0,
                });
                Counts::Rate(Bucket::full(now), fill, now)
            }
            (Some(mut before @ Counts::Window(..)), Rule::Window { length, .. }) => {
                before.advance(now);
                before.set_segment(segment(*length), now)
            }
            (_, Rule::Window { length, .. }) => Counts::Window(segment(*length), BTreeMap::new()),
            (_, Rule::Permits { .. }) => Counts::Window(1, BTreeMap::new()),
        };
        Self {
            name: &leg.name,
            rule: &leg.rule,
            counts,
        }
    }

    fn limit(&self) -> u64 {
        match self.rule {
            Rule::Window { limit, .. } | Rule::Permits { limit } => *limit,
            Rule::Rate { quota } => quota.burst_size(),
        }
    }

    /// In how many microseconds `n` fit, without others; `None` when they never do.
    fn wait(&self, n: u64, now: u64) -> Option<u64> {
        match &self.counts {
            _ if n == 0 => Some(0),
            Counts::Rate(bucket, fill, _) => bucket.wait(fill, n),
            Counts::Window(segment, counts) => {
                let room = self.limit().checked_sub(n)?;
                let mut left = counts.values().sum::<u64>();
                if left <= room {
                    return Some(0);
                }
                for (number, count) in counts {
                    left -= count;
                    if left <= room {
                        return Some((number + Rule::SEGMENTS + 1) * segment - now);
                    }
                }
                None
            }
        }
    }

    fn add(&mut self, n: u64, now: u64) {
        match &mut self.counts {
            Counts::Rate(bucket, fill, _) => bucket.take(fill, n),
            Counts::Window(segment, counts) if n > 0 => *counts.entry(now / *segment).or_default() += n,
            Counts::Window(..) => {}
        }
    }

    /// Corrects what was taken at the instant `at`, unless a leg of another kind has its name now.
    fn correct(&mut self, at: u64, charged: u64, actual: u64, now: u64) {
        let n = charged.saturating_sub(actual);
        match &mut self.counts {
            Counts::Rate(..) if !matches!(self.rule, Rule::Rate { .. }) => {}
            Counts::Window(..) if matches!(self.rule, Rule::Rate { .. }) => {}
            _ if n == 0 => self.add(actual - charged, now),
            Counts::Rate(_, _, since) if at < *since => {}
            Counts::Rate(bucket, fill, _) => {
                let gone = now.saturating_sub(at).saturating_mul(fill.gain);
                let left = charged.saturating_mul(fill.price).min(Fill::EXACT / 2);
                let left = left.saturating_sub(gone);
                bucket.level = bucket.level.saturating_sub(n.saturating_mul(fill.price).min(left));
            }
            Counts::Window(segment, counts) => {
                if let Some(count) = counts.get_mut(&(at / *segment)) {
                    *count = count.saturating_sub(n);
                }
            }
        }
    }
}

impl Counts {
    fn advance(&mut self, now: u64) {
        match self {
            Self::Rate(bucket, fill, _) => bucket.advance(fill, now),
            Self::Window(segment, counts) => {
                let oldest = (now / *segment).saturating_sub(Rule::SEGMENTS);
                counts.retain(|&number, count| number >= oldest && *count > 0);
            }
        }
    }

    /// The units of a window of another length count as taken now.
    fn set_segment(self, new: u64, now: u64) -> Self {
        match self {
            Self::Window(old, counts) if old != new => {
                let total = counts.values().sum::<u64>();
                Self::Window(new, (total > 0).then_some((now / new, total)).into_iter().collect())
            }
            same => same,
        }
    }

    fn is_fresh(&self, now: u64) -> bool {
        match self {
            Self::Rate(bucket, fill, _) => bucket.is_full(fill, now),
            Self::Window(segment, counts) => {
                let oldest = (now / *segment).saturating_sub(Rule::SEGMENTS);
                counts.iter().all(|(&number, &count)| number < oldest || count == 0)
            }
        }
    }
}
