//! Servers with hidden quotas, in virtual time.

use futures::future::join_all;
use proptest::prelude::*;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;
use tollgate::{Ask, LimiterExt, ManualClock, Outcome, Policy, Quota, TokenBucket};
use tollgate_resilience::adaptive::{Adaptive, Cubic};
use tollgate_resilience::upstream::{Feedback, Refill, RemainingQuota, Upstream};

const SECOND: Duration = Duration::from_secs(1);

/// SplitMix64.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A server whose quota halves at 200 s and doubles at 400 s of ten minutes.
struct Server {
    /// Whether it fills steadily, as a bucket of one second, or at the end of windows of ten seconds.
    steady: bool,
    fields: bool,
    left: f64,
    at: Duration,
    served: u64,
    refused: u64,
    refused_after_halving: u64,
}

/// Calls per second.
fn rate(at: Duration) -> f64 {
    match at.as_secs() {
        200..400 => 50.0,
        _ => 100.0,
    }
}

const WINDOW: u64 = 10;

impl Server {
    fn new(steady: bool, fields: bool) -> Self {
        Self {
            steady,
            fields,
            left: if steady { 100.0 } else { 1_000.0 },
            at: Duration::ZERO,
            served: 0,
            refused: 0,
            refused_after_halving: 0,
        }
    }

    fn full(&self, at: Duration) -> f64 {
        rate(at) * if self.steady { 1.0 } else { WINDOW as f64 }
    }

    /// What the response to a call at `now` says.
    fn answer(&mut self, now: Duration) -> Feedback {
        let full = self.full(now);
        if self.steady {
            // A step from change to change would be exact; calls come every few milliseconds.
            self.left = (self.left + rate(now) * (now - self.at).as_secs_f64()).min(full);
        } else if now.as_secs() / WINDOW > self.at.as_secs() / WINDOW {
            self.left = full;
        }
        self.at = now;
        let goes = self.left >= 1.0;
        let is_halving = (200..201).contains(&now.as_secs());
        match goes {
            true => {
                self.left -= 1.0;
                self.served += 1;
            }
            false if is_halving => self.refused_after_halving += 1,
            false => self.refused += 1,
        }
        let reset = match self.steady {
            true => Duration::from_secs_f64((full - self.left) / rate(now)),
            // Rounded up, as most servers do.
            false => {
                let left = Duration::from_secs((now.as_secs() / WINDOW + 1) * WINDOW) - now;
                Duration::from_secs_f64(left.as_secs_f64().ceil())
            }
        };
        let mut feedback = match goes {
            true => Feedback::default(),
            false if !self.fields => Feedback::throttled(None),
            false => Feedback::throttled(Some(if self.steady { SECOND / 10 } else { reset })),
        };
        if self.fields {
            let quota = RemainingQuota::of_calls(self.left as u64)
                .limit(full as u64)
                .reset(reset);
            let refill = if self.steady {
                Refill::Continuous
            } else {
                Refill::AtReset
            };
            feedback = feedback.quota(quota.refill(refill));
        }
        feedback
    }
}

/// What the server allows in ten minutes.
const ALLOWED: f64 = 100.0 * 400.0 + 50.0 * 200.0;

/// 64 tasks call for ten minutes, with 20 to 80 ms to the server and back. Without fields their rate finds itself.
fn ten_minutes(steady: bool, fields: bool) -> Server {
    let clock = ManualClock::new();
    let rate = Quota::per_second(1_000);
    let upstream = Arc::new(Upstream::builder().rate(rate).on(&clock).build().unwrap());
    let limits = match fields {
        true => TokenBucket::new(rate).on(&clock).boxed(),
        false => {
            let bucket = TokenBucket::new(Quota::per_second(10).burst(1)).on(&clock);
            let builder = Adaptive::builder(bucket).law(Cubic::new()).bounds(2, 2_000);
            builder.on(&clock).build().unwrap().boxed()
        }
    };
    let policy = Policy::new(Arc::clone(&upstream).and(limits));
    let server = Mutex::new(Server::new(steady, fields));
    let task = async |task: u64| {
        let mut seed = task;
        loop {
            let (permit, call) = loop {
                let permit = policy.admit(1).await.unwrap();
                if let Some(call) = upstream.begin(&Ask::one()) {
                    break (permit, call);
                }
            };
            let mut way = || Duration::from_micros(10_000 + next(&mut seed) % 30_000);
            clock.sleep(way()).await;
            if clock.elapsed() >= 600 * SECOND {
                return;
            }
            let feedback = server.lock().unwrap().answer(clock.elapsed());
            clock.sleep(way()).await;
            upstream.observe(&call, &feedback);
            permit.finish(if feedback.throttled {
                Outcome::Overload
            } else {
                Outcome::Success
            });
        }
    };
    clock.run(join_all((0..64).map(task)));
    server.into_inner().unwrap()
}

/// Of what the server allows, the part that was used; and the part of the requests that was refused, without the second after
/// the halving.
fn used_and_refused(steady: bool, fields: bool) -> (f64, f64) {
    let server = ten_minutes(steady, fields);
    let used = server.served as f64 / ALLOWED;
    let refused = server.refused as f64 / (server.served + server.refused) as f64;
    println!(
        "steady {steady}, fields {fields}: used {:.2} %, refused {:.3} %, {} in the second after the halving",
        used * 100.0,
        refused * 100.0,
        server.refused_after_halving
    );
    (used, refused)
}

#[test]
fn with_fields_a_hidden_quota_is_used_within_five_percent_and_one_percent_is_refused() {
    for steady in [false, true] {
        let (used, refused) = used_and_refused(steady, true);
        // A bucket that is full at the start allows its burst besides.
        assert!((0.95..=1.01).contains(&used), "steady {steady}: used {used}");
        assert!(refused <= 0.01, "steady {steady}: refused {refused}");
    }
}

/// Given 429s that say nothing, and a rate that finds itself.
#[test]
fn with_bare_refusals_a_hidden_quota_is_used_within_fifteen_percent_and_five_percent_are_refused() {
    for steady in [false, true] {
        let (used, refused) = used_and_refused(steady, false);
        assert!((0.85..=1.01).contains(&used), "steady {steady}: used {used}");
        assert!(refused <= 0.05, "steady {steady}: refused {refused}");
    }
}

proptest! {
    #![proptest_config(crate::cases(64))]

    /// Whatever the order of responses, the only user of a quota is never refused by it, once it knows it.
    #[test]
    fn the_only_user_of_a_window_is_never_refused(seed: u64, limit in 1u64..200, tasks in 1usize..40) {
        let (mut seed, clock) = (seed, ManualClock::new());
        let upstream = Arc::new(Upstream::builder().on(&clock).build().unwrap());
        let window = 10 * SECOND;
        let mut left = limit;
        let state = |left| {
            let quota = RemainingQuota::of_calls(left).limit(limit).window(window);
            Feedback::default().quota(quota.reset(window - clock.elapsed()))
        };
        // The first response comes alone.
        let first = upstream.try_admit(1).unwrap();
        let call = upstream.begin(&Ask::one()).unwrap();
        left -= 1;
        upstream.observe(&call, &state(left));
        first.finish(Outcome::Success);
        // Calls are sent, counted by the server, and answered, each in any order.
        let mut sent = Vec::new();
        let mut answered = Vec::new();
        let mut served = 1;
        for _ in 0..2_000 {
            clock.advance(Duration::from_micros(100));
            match next(&mut seed) % 3 {
                0 if sent.len() + answered.len() < tasks => {
                    if let Ok(permit) = upstream.try_admit(1) {
                        sent.push((permit, upstream.begin(&Ask::one()).unwrap()));
                    }
                }
                1 if !sent.is_empty() => {
                    let any = next(&mut seed) as usize % sent.len();
                    let (permit, call) = sent.swap_remove(any);
                    prop_assert!(left > 0, "refused after {served} of {limit}");
                    left -= 1;
                    served += 1;
                    answered.push((permit, call, state(left)));
                }
                2 if !answered.is_empty() => {
                    let any = next(&mut seed) as usize % answered.len();
                    let (permit, call, feedback) = answered.swap_remove(any);
                    upstream.observe(&call, &feedback);
                    permit.finish(Outcome::Success);
                }
                _ => {}
            }
        }
        // All of it is used in the end, if there was time.
        if sent.is_empty() && answered.is_empty() && left > 0 {
            prop_assert!(upstream.try_admit(1).is_ok());
        }
    }

    #[test]
    fn a_pause_ends_at_the_latest_instant_that_was_named(waits in prop::collection::vec(0u64..5_000, 1..40)) {
        let clock = ManualClock::new();
        let upstream = Upstream::builder().on(&clock).build().unwrap();
        let calls: Vec<_> = waits.iter().map(|_| upstream.begin(&Ask::one()).unwrap()).collect();
        let mut ends = BinaryHeap::new();
        for (call, wait) in calls.iter().zip(waits) {
            let wait = Duration::from_millis(wait);
            upstream.observe(call, &Feedback::throttled(Some(wait)));
            ends.push(clock.elapsed() + wait);
            let left = ends.peek().copied().unwrap().saturating_sub(clock.elapsed());
            prop_assert_eq!(upstream.paused_for().unwrap_or_default(), left);
            clock.advance(Duration::from_millis(7));
        }
    }
}
