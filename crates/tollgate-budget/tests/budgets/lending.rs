//! What is lent to children, beside water-filling by exact arithmetic.

use crate::{budgets, counts};
use proptest::prelude::*;
use std::time::Duration;
use tollgate::{Ask, LimiterExt, ManualClock};
use tollgate_budget::{Account, Budgets, Limit, Meter, OUTPUT, Period, Rule};

const MINUTE: Duration = Duration::from_secs(60);

fn tokens(units: u64) -> Ask {
    Ask::one().cost(OUTPUT, units)
}

/// An organisation, its teams, and their users, whose weights are the digits of their names.
fn tree(clock: &ManualClock, amount: u64) -> Budgets {
    let weighted = |rule: Rule| (1..=6u32).fold(rule, |rule, weight| rule.weight(format!("{weight}"), weight));
    let limit = Limit::cost(OUTPUT, amount, Period::Minute);
    let team = Rule::new("team").per(["team"]).borrows_from("organisation");
    let user = Rule::new("user").per(["team", "user"]).borrows_from("team");
    budgets(
        clock,
        [Rule::new("organisation").limit(limit), weighted(team), weighted(user)],
    )
}

/// A whole number of parts.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ratio(i128, i128);

impl Ratio {
    fn new(over: i128, under: i128) -> Self {
        let (mut one, mut two) = (over.abs(), under);
        while two != 0 {
            (one, two) = (two, one % two);
        }
        Self(over / one.max(1), under / one.max(1))
    }
    fn minus(self, other: Self) -> Self {
        Self::new(self.0 * other.1 - other.0 * self.1, self.1 * other.1)
    }
    fn is_at_most(self, other: Self) -> bool {
        self.0 * other.1 <= other.0 * self.1
    }
}

/// Progressive filling: those that want no more than their part of the rest get it, and leave the rest.
fn water_filling(mut rest: Ratio, wants: &[(u32, Ratio)]) -> Vec<Ratio> {
    let mut shares = vec![None; wants.len()];
    loop {
        let open = || (0..wants.len()).filter(|at| shares[*at].is_none());
        let weights: i128 = open().map(|at| i128::from(wants[at].0)).sum();
        let part = |at: usize| Ratio::new(rest.0 * i128::from(wants[at].0), rest.1 * weights);
        match open().find(|at| wants[*at].1.is_at_most(part(*at))) {
            Some(at) => {
                rest = rest.minus(wants[at].1);
                shares[at] = Some(wants[at].1);
            }
            None => {
                return (0..wants.len())
                    .map(|at| shares[at].unwrap_or_else(|| part(at)))
                    .collect();
            }
        }
    }
}

struct Leaf {
    account: Account,
    wants: u64,
    meters: Vec<(Meter, u64)>,
}

impl Leaf {
    fn claimed(&self) -> u64 {
        self.meters.iter().map(|(_, units)| units).sum()
    }

    /// Claims as much as it wants and gets. True if that was anything.
    fn claim(&mut self) -> bool {
        let before = self.claimed();
        let mut part = (self.wants - before).next_power_of_two();
        while part > 0 {
            let units = part.min(self.wants - self.claimed());
            match self.account.reserve(tokens(units)) {
                Ok(meter) if units > 0 => self.meters.push((meter, units)),
                _ => part /= 2,
            }
        }
        self.claimed() > before
    }

    /// Spends `units` of its claims. False when it is stopped.
    fn spend(&mut self, mut units: u64) -> bool {
        self.meters.iter_mut().all(|(meter, left)| {
            let part = units.min(*left);
            (units, *left) = (units - part, *left - part);
            meter.extend(OUTPUT, part).is_ok()
        })
    }
}

/// Given a tree of three levels, when its leaves claim in any order, then each can spend what water-filling gives it; and no more, up to the whole units that each leaf leaves over.
fn check(amount: u64, teams: &[(u32, Vec<(u32, u64)>)], order: u64) {
    let clock = ManualClock::new();
    let budgets = tree(&clock, amount);
    let mut leaves = Vec::new();
    let mut shares = Vec::new();
    let whole = |units: u64| Ratio::new(units.into(), 1);
    let wants: Vec<_> = teams
        .iter()
        .map(|(weight, users)| (*weight, whole(users.iter().map(|user| user.1.min(amount)).sum())))
        .collect();
    for ((weight, users), share) in teams.iter().zip(water_filling(whole(amount), &wants)) {
        let wants: Vec<_> = users
            .iter()
            .map(|(weight, wants)| (*weight, whole(*wants.min(&amount))))
            .collect();
        shares.extend(water_filling(share, &wants));
        for (user_weight, wants) in users {
            let (team, user) = (format!("{weight}"), format!("{user_weight}"));
            leaves.push(Leaf {
                account: budgets.account(&[("team", &team), ("user", &user)]),
                wants: *wants.min(&amount),
                meters: Vec::new(),
            });
        }
    }
    let count = leaves.len();
    let mut turn = order as usize;
    loop {
        turn = turn.wrapping_mul(7).wrapping_add(1);
        let mut progress = false;
        for at in 0..count {
            progress |= leaves[(at + turn) % count].claim();
        }
        if !progress {
            break;
        }
    }
    let slack = count as u64 + 3;
    let shares: Vec<u64> = shares.iter().map(|share| (share.0 / share.1) as u64).collect();
    for (leaf, share) in leaves.iter_mut().zip(&shares) {
        let claimed = leaf.claimed();
        assert!(
            claimed + slack >= *share,
            "{claimed} claimed of {share}: {teams:?} of {amount}"
        );
        assert!(
            leaf.spend(share.saturating_sub(slack)),
            "stopped before {share}: {teams:?} of {amount}"
        );
    }
    for (leaf, share) in leaves.iter_mut().zip(&shares) {
        if leaf.claimed() > share + 2 * slack + 1 {
            let more = slack.min(*share) + 2 * slack + 1;
            assert!(!leaf.spend(more), "not stopped beyond {share}: {teams:?} of {amount}");
        }
    }
}

#[test]
fn shares_in_three_levels_are_those_of_water_filling() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut draw = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..20_000 {
        let amount = 1 + draw(4_000);
        // Each weight once on a level, so that names tell children apart.
        let mut weights = |most: u64| -> Vec<u32> {
            let (first, count) = (draw(6), 1 + draw(most));
            (0..count).map(|at| ((first + 5 * at) % 6 + 1) as u32).collect()
        };
        let teams = weights(3);
        let users: Vec<_> = teams.iter().map(|_| weights(3)).collect();
        let team =
            |(weight, users): (u32, Vec<u32>)| (weight, users.into_iter().map(|user| (user, draw(3_000))).collect());
        let teams: Vec<(u32, Vec<(u32, u64)>)> = teams.into_iter().zip(users).map(team).collect();
        check(amount, &teams, draw(1_000));
    }
}

#[test]
fn a_lone_tenant_reaches_the_whole_within_one_admission_and_an_owner_its_share() {
    let clock = ManualClock::new();
    let budgets = tree(&clock, 900);
    let account = |team, user| budgets.account(&[("team", team), ("user", user)]);
    let mut lone = account("1", "1").reserve(tokens(900)).unwrap();
    lone.extend(OUTPUT, 100).unwrap();
    // The owner of two thirds comes, and does not wait.
    let owner = account("2", "1").reserve(tokens(600)).unwrap();
    assert!(account("2", "1").reserve(tokens(1)).is_err());
    assert!(lone.extend(OUTPUT, 200).is_ok() && lone.extend(OUTPUT, 1).is_err());
    // What the owner does not want any more is lent again.
    owner.cancel();
    assert!(lone.extend(OUTPUT, 599).is_ok() && lone.extend(OUTPUT, 1).is_err());
    drop(lone);
    assert_eq!(counts(&account("1", "1")), [(901, 0)]);
    clock.advance(MINUTE);
    assert!(account("2", "1").reserve(tokens(900)).is_ok());
}

#[test]
fn a_permit_of_a_policy_counts_as_spent() {
    let budgets = tree(&ManualClock::new(), 100);
    let account = |team| budgets.account(&[("team", team), ("user", "1")]);
    let one = account("1");
    let mut permit = one.try_admit(tokens(90)).unwrap();
    assert!(account("5").reserve(tokens(11)).is_err());
    permit.settle(OUTPUT, 40).unwrap();
    let meter = account("5").reserve(tokens(60)).unwrap();
    drop(permit);
    drop(meter);
    assert_eq!(counts(&one), [(40, 0)]);
}

#[test]
fn a_flood_of_children_is_bounded_and_shares_a_place() {
    let budgets = tree(&ManualClock::new(), 100_000);
    let mut meters = Vec::new();
    let info = allocation_counter::measure(|| {
        for user in 0..20_000 {
            let account = budgets.account(&[("team", "1"), ("user", &format!("key {user}"))]);
            let mut meter = account.reserve(tokens(2)).unwrap();
            meter.extend(OUTPUT, 1).unwrap();
            meters.push(meter);
        }
    });
    let kept = info.bytes_current as u64;
    meters.clear();
    assert_eq!(counts(&budgets.account(&[("team", "1"), ("user", "1")])), [(20_000, 0)]);
    assert!(kept / 20_000 < 2_000, "{} bytes a key", kept / 20_000);
}

#[derive(Clone, Debug)]
enum Step {
    Reserve(u32, u32, u64),
    Extend(usize, u64),
    Settle(usize, u64),
    Admit(u32, u64),
    End(usize, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1..4u32, 1..4u32, 0..400u64).prop_map(|(team, user, units)| Step::Reserve(team, user, units)),
        6 => (0..9usize, 0..60u64).prop_map(|(which, units)| Step::Extend(which, units)),
        1 => (0..9usize, 0..200u64).prop_map(|(which, part)| Step::Settle(which, part)),
        1 => (1..4u32, 0..60u64).prop_map(|(team, units)| Step::Admit(team, units)),
        2 => (0..9usize, any::<bool>()).prop_map(|(which, cancelled)| Step::End(which, cancelled)),
    ]
}

proptest! {
    /// Given any program of streams that stop when they are told to, then what is spent exceeds the amount by at most the largest
    /// charge of each; and at the end all that was not spent can be claimed at once.
    #[test]
    fn claims_may_exceed_the_amount_and_what_is_spent_does_not(steps in prop::collection::vec(step(), 1..120)) {
        const AMOUNT: u64 = 500;
        let budgets = tree(&ManualClock::new(), AMOUNT);
        let account = |team: u32, user: u32| budgets.account(&[("team", &format!("{team}")), ("user", &format!("{user}"))]);
        let (mut running, mut ended, mut stopped) = (Vec::<(Meter, u64)>::new(), 0, 0);
        for step in steps {
            match step {
                Step::Reserve(team, user, units) => {
                    running.extend(account(team, user).reserve(tokens(units)).ok().map(|meter| (meter, 0)));
                }
                Step::Extend(which, units) if which < running.len() => {
                    let (meter, _) = &mut running[which];
                    if meter.extend(OUTPUT, units).is_err() {
                        ended += running.swap_remove(which).0.used(OUTPUT);
                        stopped += 60;
                    }
                }
                Step::Settle(which, part) if which < running.len() => {
                    // To less than it has used.
                    let (meter, _) = &mut running[which];
                    let less = meter.used(OUTPUT) * part.min(100) / 100;
                    drop(meter.settle(OUTPUT, less));
                }
                Step::Admit(team, units) => {
                    ended += u64::from(account(team, 9).try_admit(tokens(units)).is_ok()) * units;
                }
                Step::End(which, cancelled) if which < running.len() => {
                    let (meter, _) = running.swap_remove(which);
                    match cancelled {
                        true => meter.cancel(),
                        false => ended += meter.used(OUTPUT),
                    }
                }
                _ => {}
            }
            let spent = ended + running.iter().map(|(meter, _)| meter.used(OUTPUT)).sum::<u64>();
            prop_assert!(spent <= AMOUNT + stopped, "{} spent", spent);
        }
        for (meter, _) in running {
            ended += meter.used(OUTPUT);
        }
        prop_assert_eq!(counts(&account(1, 1)), [(ended, 0)]);
        let left = AMOUNT.saturating_sub(ended);
        prop_assert!(account(3, 3).reserve(tokens(left + 1)).is_err());
        prop_assert!(account(3, 3).reserve(tokens(left)).is_ok());
    }
}
