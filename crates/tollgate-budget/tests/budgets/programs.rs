//! Random programs of requests beside a sequential reference.

use crate::{budgets, counts};
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Ask, ManualClock};
use tollgate_budget::{Account, INPUT, Limit, MONEY, Meter, OUTPUT, Period, Rule};

const COSTS: [tollgate::Cost; 3] = [INPUT, OUTPUT, MONEY];
const MINUTE: u64 = 60;

/// The limits, in the order of the rules. The hour is soft. Of each: the cost, the amount and the seconds of its period.
const LIMITS: [(usize, u64, u64); 5] = [
    (1, 200, 60),
    (2, 500, 60),
    (0, 300, 60),
    (1, 900, 3_600),
    (2, 400, 3_600),
];

fn rules() -> [Rule; 3] {
    let limit = |at: usize| {
        let (cost, amount, period) = LIMITS[at];
        Limit::cost(
            COSTS[cost],
            amount,
            if period == MINUTE { Period::Minute } else { Period::Hour },
        )
    };
    [
        Rule::new("user").per(["user"]).limit(limit(0)).limit(limit(1)),
        Rule::new("large").when("model", "large").per(["team"]).limit(limit(2)),
        Rule::new("all").limit(limit(3)).limit(limit(4).soft()),
    ]
}

/// A unit that one limit of one level was charged: as the reference keeps it.
#[derive(Clone, Debug)]
struct Held {
    level: (usize, String),
    limit: usize,
    period: u64,
    reserved: u64,
    /// Charged beyond the reservation, by period.
    beyond: Vec<(u64, u64)>,
    open: bool,
}

impl Held {
    fn units(&self, period: u64) -> u64 {
        let reserved = if self.period == period { self.reserved } else { 0 };
        let beyond: u64 = self
            .beyond
            .iter()
            .filter(|(at, _)| *at == period)
            .map(|(_, units)| units)
            .sum();
        reserved + beyond
    }

    fn total(&self) -> u64 {
        self.reserved + self.beyond.iter().map(|(_, units)| units).sum::<u64>()
    }
}

struct Running {
    meter: Meter,
    held: Vec<usize>,
    used: [u64; 3],
}

#[derive(Default)]
struct Reference {
    now: u64,
    held: Vec<Held>,
}

impl Reference {
    fn period(&self, limit: usize) -> u64 {
        self.now / LIMITS[limit].2
    }

    /// Used and open of one limit of a level.
    fn count(&self, level: &(usize, String), limit: usize) -> (u64, u64) {
        let here = self
            .held
            .iter()
            .filter(|held| held.level == *level && held.limit == limit);
        here.fold((0, 0), |(used, open), held| match held.units(self.period(limit)) {
            units if held.open => (used, open + units),
            units => (used + units, open),
        })
    }

    /// The levels of a user, and their limits.
    fn levels(user: usize, large: bool) -> Vec<((usize, String), Vec<usize>)> {
        let mut levels = vec![((0, format!("{user}")), vec![0, 1])];
        if large {
            levels.push(((1, String::new()), vec![2]));
        }
        levels.push(((2, String::new()), vec![3, 4]));
        levels
    }

    fn reserve(&mut self, user: usize, large: bool, units: [u64; 3]) -> Option<Vec<usize>> {
        let levels = Self::levels(user, large);
        let limits = || {
            levels
                .iter()
                .flat_map(|(level, limits)| limits.iter().map(move |limit| (level, *limit)))
        };
        let fits = limits().all(|(level, limit)| {
            let (used, open) = self.count(level, limit);
            let (cost, amount, _) = LIMITS[limit];
            limit == 4 || units[cost] == 0 || used + open + units[cost] <= amount
        });
        if !fits {
            return None;
        }
        let held: Vec<Held> = limits()
            .map(|(level, limit)| Held {
                level: level.clone(),
                limit,
                period: self.period(limit),
                reserved: units[LIMITS[limit].0],
                beyond: Vec::new(),
                open: true,
            })
            .collect();
        let first = self.held.len();
        self.held.extend(held);
        Some((first..self.held.len()).collect())
    }

    /// Charges `used` in all; whether no hard limit is over if something was charged.
    fn extend(&mut self, held: &[usize], cost: usize, used: u64) -> bool {
        let mut fits = true;
        for at in held {
            let limit = self.held[*at].limit;
            if LIMITS[limit].0 != cost || self.held[*at].total() >= used {
                continue;
            }
            let (more, period) = (used - self.held[*at].total(), self.period(limit));
            self.held[*at].beyond.push((period, more));
            let (used, open) = self.count(&self.held[*at].level.clone(), limit);
            fits &= limit == 4 || used + open <= LIMITS[limit].1;
        }
        fits
    }

    /// Leaves `used` of what was charged: the last units come back first, to the periods that last.
    fn settle(&mut self, held: &[usize], cost: usize, used: u64) {
        for at in held {
            let held = &mut self.held[*at];
            if LIMITS[held.limit].0 != cost {
                continue;
            }
            if held.total() < used {
                held.reserved += used - held.total();
            }
            let mut back = held.total() - used;
            for (_, units) in held.beyond.iter_mut().rev() {
                let here = back.min(*units);
                *units -= here;
                back -= here;
            }
            held.reserved -= back;
        }
    }

    fn end(&mut self, held: &[usize]) {
        held.iter().for_each(|at| self.held[*at].open = false);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Reserve { user: usize, large: bool, units: [u64; 3] },
    Extend { which: usize, cost: usize, units: u64 },
    Settle { which: usize, cost: usize, actual: u64 },
    End { which: usize },
    Cancel { which: usize },
    Pause { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let units = || prop_oneof![0..40u64, 0..150u64];
    prop_oneof![
        3 => (0..3usize, any::<bool>(), [units(), units(), units()])
            .prop_map(|(user, large, units)| Step::Reserve { user, large, units }),
        4 => (0..9usize, 0..3usize, units()).prop_map(|(which, cost, units)| Step::Extend { which, cost, units }),
        2 => (0..9usize, 0..3usize, units()).prop_map(|(which, cost, actual)| Step::Settle { which, cost, actual }),
        2 => (0..9usize).prop_map(|which| Step::End { which }),
        1 => (0..9usize).prop_map(|which| Step::Cancel { which }),
        1 => (0..90u64).prop_map(|seconds| Step::Pause { seconds }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Given any program of reservations, streams, settlements, ends, cancels and pauses, then each answer, and what each level has
    /// used and holds after each step, is that of the reference.
    #[test]
    fn budgets_equal_a_list_of_all_charges(steps in prop::collection::vec(step(), 1..80)) {
        let clock = ManualClock::new();
        let budgets = budgets(&clock, rules());
        let account = |user: usize, large: bool| -> Account {
            let user = format!("{user}");
            let model = if large { "large" } else { "small" };
            budgets.account(&[("team", "a"), ("user", &user), ("model", model)])
        };
        let (mut reference, mut running) = (Reference::default(), Vec::<Running>::new());
        for step in steps {
            match step {
                Step::Reserve { user, large, units } => {
                    let ask = Ask::one().cost(INPUT, units[0]).cost(OUTPUT, units[1]).cost(MONEY, units[2]);
                    let meter = account(user, large).reserve(ask);
                    let held = reference.reserve(user, large, units);
                    prop_assert_eq!(meter.is_ok(), held.is_some(), "{:?}", meter);
                    if let (Ok(meter), Some(held)) = (meter, held) {
                        running.push(Running { meter, held, used: [0; 3] });
                    }
                }
                Step::Extend { which, cost, units } if which < running.len() => {
                    let Running { meter, held, used } = &mut running[which];
                    used[cost] += units;
                    let fits = reference.extend(held, cost, used[cost]);
                    prop_assert_eq!(meter.extend(COSTS[cost], units).is_ok(), fits);
                }
                Step::Settle { which, cost, actual } if which < running.len() => {
                    let Running { meter, held, used } = &mut running[which];
                    used[cost] = actual;
                    reference.settle(held, cost, actual);
                    // Whether that is over is told by the counts.
                    drop(meter.settle(COSTS[cost], actual));
                }
                Step::End { which } if which < running.len() => {
                    let Running { meter, held, used } = running.swap_remove(which);
                    for (cost, used) in used.into_iter().enumerate() {
                        // It may have used more than is charged: then nothing comes back.
                        reference.settle(&held, cost, used);
                    }
                    reference.end(&held);
                    drop(meter);
                }
                Step::Cancel { which } if which < running.len() => {
                    let Running { meter, held, .. } = running.swap_remove(which);
                    (0..3).for_each(|cost| reference.settle(&held, cost, 0));
                    reference.end(&held);
                    meter.cancel();
                }
                Step::Pause { seconds } => {
                    reference.now += seconds;
                    clock.advance(Duration::from_secs(seconds));
                }
                _ => {}
            }
            for (user, large) in [(0, true), (1, false), (2, true)] {
                let expected: Vec<(u64, u64)> = Reference::levels(user, large)
                    .iter()
                    .flat_map(|(level, limits)| limits.iter().map(|limit| reference.count(level, *limit)))
                    .collect();
                prop_assert_eq!(counts(&account(user, large)), expected);
            }
        }
    }
}
