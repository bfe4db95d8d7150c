//! The laws of the machines that shed.

use super::drop_probability::{early_rejection_probability, throttle_probability};
use super::partitions::{ShareRule, Shares};
use super::retry_budget::Reserve;
use super::throttler::ThrottleState;
use crate::laws::holds;
use crate::rng::Rng;

/// In any order of takes and returns no limit is exceeded, and each rule keeps its word: a class always finds its guaranteed part, lends what
/// it does not use or not, and is not let in above its level.
#[test]
fn parts_are_kept_lent_and_levelled() {
    holds([2, 3], |inputs| {
        let rule = inputs.one_of(&[ShareRule::Kept, ShareRule::Lent, ShareRule::Level]);
        let thirds = [[300_000, 400_000, 300_000], [500_000, 0, 250_000]];
        let parts = inputs.one_of(&thirds);
        let limit = inputs.number(1 << 40, 0) + inputs.one_of(&[0, 4, 10]);
        let mut shares = Shares::new(limit, parts.into(), rule);
        let mut held = [0u64; 3];
        while inputs.goes_on() {
            let class = inputs.below(3) as usize;
            let n = inputs.number(limit + 1, 4);
            if inputs.below(3) == 0 {
                shares.give_back(class, n);
                held[class] = held[class].saturating_sub(n);
            } else {
                let (fits, could) = (shares.fits(class, n), shares.could_fit(class, n));
                let free = limit - held.iter().sum::<u64>();
                assert!(could || !fits, "what never fits does not fit");
                assert!(!fits || n <= free);
                assert_eq!(fits, shares.room(class).is_some_and(|room| n <= room));
                let part = |class: usize| {
                    u64::try_from(u128::from(limit) * u128::from(parts[class]) / 1_000_000).expect("it is less")
                };
                assert_eq!(shares.part(class), part(class));
                let others = (0..3).filter(|&other| other != class);
                let expected = match rule {
                    ShareRule::Lent => n <= free,
                    ShareRule::Level => {
                        held.iter().sum::<u64>() <= part(class) && n <= part(class) - held.iter().sum::<u64>()
                    }
                    // What the others are due and do not use stays free.
                    ShareRule::Kept => {
                        let due: u64 = others
                            .clone()
                            .map(|other| part(other).saturating_sub(held[other]))
                            .sum();
                        due <= free && n <= free - due
                    }
                };
                assert_eq!(fits, expected);
                let alone = match rule {
                    ShareRule::Lent => limit,
                    ShareRule::Level => part(class),
                    ShareRule::Kept => limit - others.map(part).sum::<u64>(),
                };
                assert_eq!((shares.most(class), could), (alone, n <= alone));
                assert!(
                    rule != ShareRule::Kept || held[class] + n > part(class) || fits,
                    "a part is guaranteed"
                );
                assert_eq!(shares.take(class, n), fits);
                if fits {
                    held[class] += n;
                }
                // One that passes a waiter takes nothing that this could have.
                for waits in 0..3 {
                    let passes = shares.passes(class, 1, waits);
                    let expected = match rule {
                        ShareRule::Lent => false,
                        ShareRule::Level => parts[class] > parts[waits],
                        ShareRule::Kept => waits != class && held[class] < part(class),
                    };
                    assert_eq!(passes, expected);
                    if passes && rule == ShareRule::Kept && shares.fits(class, 1) {
                        let room = shares.room(waits);
                        let mut after = shares.clone();
                        assert!(after.take(class, 1) && after.room(waits) == room);
                    }
                }
            }
            assert_eq!([0, 1, 2].map(|class| shares.held(class)), held);
            assert!(shares.total() == held.iter().sum::<u64>() && shares.total() <= limit && shares.limit() == limit);
        }
    });
}

/// Parts are taken in whole millionths, as they were given; at most 256, each up to one, and together too where they are kept.
#[test]
fn parts_are_whole_millionths_of_what_was_given() {
    holds([1, 1], |inputs| {
        let rule = inputs.one_of(&[ShareRule::Kept, ShareRule::Lent, ShareRule::Level]);
        let classes = inputs.one_of(&[0, 1, 2, 256, 257]);
        let one = inputs.number(1_000_000, 0) + inputs.one_of(&[0, 1, 300_001, 500_000, 999_999, 1_000_000]);
        let all: Vec<f64> = (0..classes)
            .map(|class| if class < 2 { one as f64 / 1e6 } else { 0.0 })
            .collect();
        let sum = one * classes.min(2) as u64;
        let is_allowed =
            (1..=256).contains(&classes) && one <= 1_000_000 && (rule != ShareRule::Kept || sum <= 1_000_000);
        match rule.millionths(&all) {
            Ok(parts) => {
                assert!(is_allowed, "{one} of {classes}");
                let given = (0..classes).map(|class| if class < 2 { one } else { 0 });
                assert!(parts.iter().copied().eq(given), "{parts:?}");
            }
            Err(_) => assert!(!is_allowed, "{one} of {classes}"),
        }
        // What the rounding of a sum may add is no excess.
        assert!(
            rule.millionths(&[1.0, 1e-9]).is_ok()
                && (rule != ShareRule::Kept || rule.millionths(&[1.0, 1e-6]).is_err())
        );
        assert!(rule.millionths(&[-1e-9]).is_err() && rule.millionths(&[f64::NAN]).is_err());
    });
}

/// Given any reservations, deposits and cancels in any order, then the reserve holds as much as if the cancelled ones had never been
/// reserved. Of more than 64 reservations it holds no more than that.
#[test]
fn a_cancel_leaves_what_would_be_held_without_the_reservation() {
    holds([5, 6], |inputs| {
        let size = inputs.number(1 << 62, 3);
        let mut reserve = Reserve::new(size);
        // What was reserved, or with a minus sign deposited.
        let (mut history, mut made, mut reserved) = (Vec::<i128>::new(), Vec::new(), 0);
        for _ in 0..inputs.number(5, 0) * 16 {
            if let Some(number) = reserve.take(1) {
                made.push((number, 1, history.len()));
                history.push(1);
                reserved += 1;
            }
        }
        if reserved == 64 {
            // The oldest are told apart, whatever was reserved of nothing.
            assert!(reserve.take(0).is_some());
            for _ in 0..2 {
                let held = reserve.held();
                let (number, n, at) = made.remove(inputs.below(2) as usize);
                reserve.give_back(number, n);
                history[at] = 0;
                assert_eq!(reserve.held(), held + n);
            }
        }
        while inputs.goes_on() {
            let held = reserve.held();
            match inputs.below(3) {
                0 => {
                    let n = inputs.number(size, 2);
                    let taken = reserve.take(n);
                    assert_eq!(taken.is_some(), n <= held);
                    if let Some(number) = taken {
                        made.push((number, n, history.len()));
                        history.push(n.into());
                        reserved += u32::from(n > 0);
                    }
                }
                1 => {
                    let n = inputs.number(1 << 62, 2);
                    reserve.add(n);
                    history.push(-i128::from(n));
                }
                _ if !made.is_empty() => {
                    let (number, n, at) = made.remove(inputs.below(made.len() as u64) as usize);
                    reserve.give_back(number, n);
                    history[at] = 0;
                    assert!(reserve.held() <= held + n);
                }
                _ => {}
            }
            let missing = history
                .iter()
                .fold(0, |missing: i128, change| (missing + change).max(0));
            let (held, exact) = (i128::from(reserve.held()), i128::from(size) - missing);
            assert!(held == exact || (held < exact && reserved > 64), "{held} for {exact}");
            assert_eq!(reserve.size(), size);
        }
    });
}

/// The last ten segments are counted, and one that comes late counts in a later one.
#[test]
fn a_throttler_counts_the_last_segments() {
    holds([3, 4], |inputs| {
        let (mut state, mut newest) = (ThrottleState::new(Rng::new(0)), 1 + inputs.number(1 << 60, 0));
        let mut all = Vec::<(u64, u64, u64)>::new();
        while inputs.goes_on() {
            let ahead = inputs.number(30, 10);
            newest += ahead;
            let of = newest.saturating_sub(inputs.number(20, 0)).max(1);
            let (asked, accepted) = (inputs.number(1 << 30, 1), inputs.number(1 << 30, 1));
            let segment = state.segment(of);
            let number = segment.number;
            assert!(number == of || (number > of && number <= newest && (number - of) % 10 == 0));
            segment.asked += asked;
            segment.accepted += accepted;
            all.push((number, asked, accepted));
            let last = all.iter().filter(|(number, ..)| number + 10 > newest);
            let sum = last.fold((0, 0), |sum, (_, asked, accepted)| (sum.0 + asked, sum.1 + accepted));
            assert_eq!(state.totals(newest), sum);
        }
    });
}

/// Nothing is dropped as long as the accepted share is the expected one; then more with each refusal, up to the most. A queue drops
/// nothing below its first mark, all above the last, and in proportion between.
#[test]
fn a_drop_probability_grows_with_refusals() {
    holds([1, 1], |inputs| {
        let asked = inputs.number(1 << 40, 20);
        let accepted = inputs.number(asked, 20);
        let (rate, most) = (inputs.one_of(&[0.5, 1.0]), inputs.one_of(&[0.0, 0.9]));
        let drop = |accepted: u64| throttle_probability(asked as f64, accepted as f64, rate, most);
        let found = drop(accepted);
        assert!((0.0..=most).contains(&found) && found <= drop(accepted / 2));
        let due = asked as f64 - accepted as f64 / rate;
        assert_eq!(found > 0.0, due > 0.0 && most > 0.0);
        assert!(most == 0.0 || found == most || (found * (asked as f64 + 1.0) - due.max(0.0)).abs() < 1e-3);
        assert!(found < most || most == 0.0 || due / (asked as f64 + 1.0) >= most - 1e-12);
        let from = inputs.number(1 << 30, 3) as usize;
        let (wide, queued) = (inputs.number(1 << 30, 3) as usize, inputs.number(1 << 32, 8) as usize);
        let drop = early_rejection_probability(queued, from, from + wide);
        assert!(
            (0.0..=1.0).contains(&drop)
                && (drop == 1.0) == (queued >= from + wide)
                && (drop > 0.0) == (queued > from || wide == 0 && queued == from)
        );
        if queued >= from && queued < from + wide {
            assert!((drop * wide as f64 - (queued - from) as f64).abs() < 1e-3);
        }
    });
}
