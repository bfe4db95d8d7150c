//! No sequence of calls mints a retry, or counts a request twice: see `fuzz/targets/ledger.rs`.

use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tollgate::{Ask, ClockReading, Demand, Inherit, Instant, Limiter, Outcome, Settlement};
use tollgate_resilience::shed::{RetryBudget, Throttler};

#[allow(dead_code, reason = "fuzz targets run the other programs")]
#[path = "../../../../../fuzz/targets/ledger.rs"]
mod ledger;

use ledger::{SECOND, Step, TOKENS, rate, run, world};

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(any::<[u8; 3]>().prop_map(Step::decode), 1..80)
}

/// Each deposit stands for a second in which two come.
fn retry_budget(steps: &[Step]) {
    let clock = world();
    let budget = Arc::new(RetryBudget::new(2.0, 10).unwrap());
    let deposit = |step| match step {
        Step::Wait(_) => Step::Change(0, Inherit::AsIs),
        step => step,
    };
    let timeless = steps.iter().copied().filter(|step| !matches!(step, Step::Stale(_)));
    let steps: Vec<_> = timeless.map(deposit).collect();
    run(
        &clock,
        rate(10),
        true,
        &steps,
        |_| Some(Arc::clone(&budget)),
        |_, _| {
            clock.advance(SECOND);
            budget.deposit();
            None
        },
    );
}

proptest! {
    #![proptest_config(crate::cases(400))]

    #[test]
    fn a_retry_budget_mints_nothing(steps in steps()) {
        retry_budget(&steps);
    }

    /// Requests and successes are counted once, in the segment of the request, whatever becomes of it.
    #[test]
    fn a_throttler_counts_each_request_and_each_success_once(steps in steps()) {
        const SEGMENTS: u64 = 10;
        let clock = world();
        let throttler = Throttler::new(0.5, 0.9, SECOND * SEGMENTS as u32).unwrap().on(&clock);
        // The segment, the requests, and the successes.
        let mut asked: Vec<(u64, u64, u64)> = Vec::new();
        let (mut held, mut stale) = (Vec::new(), Duration::ZERO);
        for step in steps {
            let now = clock.elapsed().saturating_sub(stale);
            let reading = ClockReading::at(&clock, clock.after(Instant::ZERO, now));
            stale = Duration::ZERO;
            match step {
                Step::Reserve(_, units) => {
                    let ask = Ask::many(units);
                    if let Ok(ticket) = throttler.try_reserve(&Demand::new(&ask, &reading)) {
                        held.push((ticket, asked.len()));
                    }
                    asked.push((now.as_secs(), units, 0));
                }
                Step::Settle(index, _) if index < held.len() => {
                    throttler.settle(&mut held[index].0, &Settlement::new(TOKENS, 9).per(TOKENS));
                }
                Step::Cancel(index) if index < held.len() => {
                    let (ticket, of) = held.remove(index);
                    throttler.cancel(ticket);
                    asked[of].1 = 0;
                }
                Step::Forget(index) if index < held.len() => throttler.finish(held.remove(index).0, Outcome::Forgotten),
                Step::Finish(index) if index < held.len() => {
                    let (ticket, of) = held.remove(index);
                    throttler.finish(ticket, Outcome::Success);
                    asked[of].2 = asked[of].1;
                }
                Step::Wait(time) => clock.advance(time),
                Step::Stale(time) => stale = time,
                _ => {}
            }
            let now = clock.elapsed().as_secs();
            let within = asked.iter().filter(|&&(at, ..)| at + SEGMENTS > now);
            let (asked, accepted) = within.fold((0, 0), |sum, part| (sum.0 + part.1, sum.1 + part.2));
            let rate = (asked as f64 - 2.0 * accepted as f64) / (asked as f64 + 1.0);
            prop_assert_eq!(throttler.rate(), rate.clamp(0.0, 0.9), "{} of {} were accepted", accepted, asked);
        }
    }
}
