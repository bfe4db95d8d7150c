//! The laws of the machines of policies.

use super::early_rejection::rejection_probability;
use super::partitions::{ShareRule, Shares};
use crate::laws::holds;

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

/// A queue drops nothing below its first mark, all above the last, and in proportion between.
#[test]
fn early_rejections_are_in_proportion_between_the_marks() {
    holds([1, 1], |inputs| {
        let from = inputs.number(1 << 30, 3) as usize;
        let (wide, queued) = (inputs.number(1 << 30, 3) as usize, inputs.number(1 << 32, 8) as usize);
        let drop = rejection_probability(queued, from, from + wide);
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
