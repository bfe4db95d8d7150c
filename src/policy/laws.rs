//! The laws of the machines of policies.

use super::partitions::{ShareRule, Shares};
use crate::laws::holds;

/// In any order of takes and returns no limit is exceeded, and each rule keeps its word: a class always finds its guaranteed part, and is not
/// let in above its level. Lent parts are levels of the whole limit.
#[test]
fn parts_are_kept_lent_and_levelled() {
    holds([2, 3], |inputs| {
        let rule = inputs.one_of(&[ShareRule::Kept, ShareRule::Level]);
        let thirds = [[300_000, 400_000, 300_000], [500_000, 0, 250_000]];
        let parts = match rule {
            ShareRule::Level if inputs.below(2) == 0 => [1_000_000; 3],
            ShareRule::Kept | ShareRule::Level => inputs.one_of(&thirds),
        };
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
                let (fits, could) = (shares.fits(class, n), n <= shares.most(class));
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
                    ShareRule::Level => part(class),
                    ShareRule::Kept => limit - others.map(part).sum::<u64>(),
                };
                assert_eq!(shares.most(class), alone);
                assert!(
                    rule != ShareRule::Kept || held[class] + n > part(class) || fits,
                    "a part is guaranteed"
                );
                if fits {
                    shares.take(class, n);
                    held[class] += n;
                }
                // One that passes a waiter takes nothing that this could have.
                for waits in 0..3 {
                    let passes = shares.passes(class, 1, waits);
                    let expected = match rule {
                        ShareRule::Level => parts[class] > parts[waits],
                        ShareRule::Kept => waits != class && held[class] < part(class),
                    };
                    assert_eq!(passes, expected);
                    if passes && rule == ShareRule::Kept && shares.fits(class, 1) {
                        let room = shares.room(waits);
                        let mut after = shares.clone();
                        after.take(class, 1);
                        assert_eq!(after.room(waits), room);
                    }
                }
            }
            assert_eq!([0, 1, 2].map(|class| shares.held(class)), held);
            assert!(held.iter().sum::<u64>() <= limit);
        }
    });
}

/// Parts are taken in whole millionths, as they were given; at most 256, each up to one, and together too where they are kept.
#[test]
fn parts_are_whole_millionths_of_what_was_given() {
    holds([1, 1], |inputs| {
        let rule = inputs.one_of(&[ShareRule::Kept, ShareRule::Level]);
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
                let given = |class| if class < 2 { one } else { 0 };
                assert!(parts.iter().copied().eq((0..classes).map(given)), "{parts:?}");
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
