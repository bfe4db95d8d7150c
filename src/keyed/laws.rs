//! The law of the shares: what they hold is theirs, and the inflow goes to all that have room, alike.

use super::max_min::MaxMin;
use crate::laws::holds;

/// Given shares that take, give back, take beyond what they hold, come full and leave, while time passes, then
/// - a take succeeds if the share holds it, and each changes its own share alone, by exactly its grains;
/// - what comes back is at most what was taken, and all of it if nothing happened in between;
/// - of the inflow all shares with room gain alike, a share that fills up no more than these, and nothing is lost while one has room;
/// - the tick at which a share will hold an amount is the first.
#[test]
fn shares_keep_what_they_hold_and_divide_the_inflow_alike() {
    holds([2, 3], |inputs| {
        let (flow, burst) = (1 + inputs.number(1 << 30, 2), 1 + inputs.number(1 << 62, 3));
        let mut now = inputs.number(1 << 40, 0);
        let mut max_min = MaxMin::new(u128::from(flow) << 64, burst, now);
        // Beyond 2^64 grains an instant that is told is a lower bound.
        let is_exact = |ticks: u64| (u128::from(ticks) + 2) * u128::from(flow) < 1 << 64;
        let mut next = 3;
        let mut shares: Vec<_> = (0..next).map(|number| max_min.new_share(number)).collect();
        let mut marks: Vec<(usize, u128, u64)> = Vec::new();
        // Inflow, and what shares with room have gained of it since all were full.
        let (mut inflow, mut gained) = (0, 0);
        // The rest of the tick in which the last was full, which is there as long as no more time passes.
        let mut rest = 0;
        while inputs.goes_on() {
            let held: Vec<_> = shares.iter().map(|share| max_min.held(share)).collect();
            let at = inputs.below(shares.len() as u64) as usize;
            let mut changed = Some(at);
            let kind = inputs.below(6);
            match kind {
                0 => {
                    let ticks = inputs.number(1 << 33, 2);
                    let wanted = u128::from(inputs.number(burst, 3));
                    let promised = max_min.holds_at(&shares[at], wanted);
                    let mut before = max_min.clone();
                    assert!(promised <= now || held[at] < wanted as i128);
                    if promised <= now && held[at] < wanted as i128 {
                        // A share that has left leaves a part of a grain: it is divided with the next tick.
                        let mut soon = before.clone();
                        soon.advance(now + 1);
                        assert!(soon.held(&shares[at]) >= wanted as i128);
                    }
                    if promised > now {
                        before.advance(promised - 1);
                        assert!(before.held(&shares[at]) < wanted as i128, "not before");
                        before.advance(promised);
                        let comes = before.held(&shares[at]) >= wanted as i128;
                        assert!(comes || !is_exact(promised - now), "at {promised}");
                    }
                    if ticks > 0 && shares.iter().all(|share| max_min.is_full(share)) {
                        rest = 0;
                    }
                    now += ticks;
                    max_min.advance(now);
                    // An earlier instant changes nothing.
                    max_min.advance(now - ticks.min(1));
                    let gains: Vec<_> = (shares.iter().zip(&held))
                        .map(|(share, held)| max_min.held(share) - held)
                        .collect();
                    let most = gains.iter().copied().max().unwrap_or(0);
                    for (share, gain) in shares.iter().zip(&gains) {
                        assert!(*gain == most || max_min.is_full(share) && (0..most).contains(gain));
                    }
                    inflow += i128::from(flow) * i128::from(ticks);
                    gained += gains.iter().sum::<i128>();
                    if shares.iter().all(|share| max_min.is_full(share)) {
                        assert!(gained <= inflow + rest);
                        rest = (inflow + rest - gained).min(flow.into());
                        (inflow, gained) = (0, 0);
                    } else {
                        assert!(
                            (-rest..shares.len() as i128).contains(&(inflow - gained)),
                            "{gained} of {inflow}"
                        );
                    }
                    changed = None;
                }
                1 | 2 => {
                    let grains = inputs.number(burst, 3);
                    let was_full = max_min.is_full(&shares[at]);
                    let taken = max_min.take(&mut shares[at], grains);
                    assert_eq!(taken.is_some(), held[at] >= i128::from(grains));
                    if let Some(mark) = taken {
                        assert_eq!(max_min.held(&shares[at]), held[at] - i128::from(grains));
                        assert!(was_full || !max_min.is_full(&shares[at]));
                        if kind == 1 {
                            assert_eq!(max_min.give_back(&mut shares[at], mark, grains), grains > 0);
                            assert_eq!(max_min.held(&shares[at]), held[at], "at once");
                        } else {
                            marks.push((at, mark, grains));
                        }
                    }
                }
                3 => {
                    // Some of a take that may be old.
                    let Some((whose, mark, grains)) = marks.pop() else {
                        continue;
                    };
                    let back = inputs.number(grains, 2);
                    let any = max_min.give_back(&mut shares[whose], mark, back);
                    let gain = max_min.held(&shares[whose]) - held[whose];
                    assert!((0..=i128::from(back)).contains(&gain) && any == (gain > 0));
                    if back < grains && back > 0 {
                        // The rest may come back later.
                        marks.push((whose, mark, grains - back));
                    }
                    changed = Some(whose);
                }
                4 => {
                    // More for a take, also more than there is; and all of it back at once.
                    let Some((whose, mark, grains)) = marks.pop() else {
                        continue;
                    };
                    let more = inputs.number((2 * burst).min(u64::MAX - grains), 4);
                    let mark = max_min.take_more(&mut shares[whose], mark, more);
                    assert_eq!(max_min.held(&shares[whose]), held[whose] - i128::from(more));
                    if inputs.below(2) == 0 {
                        assert_eq!(max_min.give_back(&mut shares[whose], mark, more), more > 0);
                        assert_eq!(max_min.held(&shares[whose]), held[whose]);
                    } else {
                        marks.push((whose, mark, grains + more));
                    }
                    changed = Some(whose);
                }
                _ => {
                    // A share goes, and a new one comes, which is full.
                    let fills = !max_min.is_full(&shares[at]);
                    assert_eq!(max_min.leave(&shares[at]), fills);
                    shares[at] = max_min.new_share(next);
                    next += 1;
                    marks.retain(|(whose, ..)| *whose != at);
                    assert_eq!(max_min.held(&shares[at]), i128::from(burst));
                    if shares.iter().all(|share| max_min.is_full(share)) {
                        // What is left of the inflow is less than that of a tick, and is lost with the next.
                        max_min.advance(now + 2);
                        now += 2;
                        (inflow, gained, rest) = (0, 0, 0);
                    }
                }
            }
            for (other, (share, held)) in shares.iter().zip(&held).enumerate() {
                assert!(max_min.held(share) <= i128::from(burst));
                assert!(changed.is_none_or(|changed| changed == other) || max_min.held(share) == *held);
            }
            for (number, share) in shares.iter().enumerate() {
                let wanted = u128::from(burst) / (1 + number as u128);
                let promised = max_min.holds_at(share, wanted);
                assert!(
                    promised <= max_min.holds_at(share, burst.into()),
                    "more comes no earlier"
                );
                if promised > now && promised < 1 << 62 {
                    let mut later = max_min.clone();
                    later.advance(promised - 1);
                    assert!(later.held(share) < wanted as i128, "not before {promised}");
                    later.advance(promised);
                    let comes = later.held(share) >= wanted as i128;
                    assert!(comes || !is_exact(promised - now), "at {promised}");
                }
            }
            let filling = shares.iter().filter(|share| !max_min.is_full(share)).count();
            for share in &shares {
                assert_eq!(max_min.is_full(share), max_min.held(share) == i128::from(burst));
                assert_eq!(max_min.sharers(share), filling + usize::from(max_min.is_full(share)));
            }
        }
    });
}

/// Given a share that takes the same each time it is full, then no part of a tick is lost: it is full for the last time at the first tick at
/// which all that was taken has flowed in. Time in which it was full counts for nothing.
#[test]
fn steady_demand_on_a_share_loses_no_part_of_a_tick() {
    holds([1, 1], |inputs| {
        let flow = (1 + u128::from(inputs.number(1 << 20, 20))) << 61;
        // No less than flows in within a tick.
        let taken = flow.div_ceil(1 << 64) as u64 + inputs.number(1 << 20, 5);
        let burst = taken + inputs.number(1 << 20, 3);
        let begun = inputs.number(1 << 40, 1);
        let mut max_min = MaxMin::new(flow, burst, begun);
        let mut share = max_min.new_share(1);
        let lasts = |rounds: u64| (u128::from(rounds * taken) << 64).div_ceil(flow) as u64;
        let mut now = begun;
        // Beyond the numbers more comes no earlier either.
        let mut far = MaxMin::new(1 << 64, u64::MAX >> 1, 0);
        let mut shares = [0, 1, 2].map(|number| far.new_share(number));
        for share in &mut shares {
            assert!(far.take(share, u64::MAX >> 1).is_some());
        }
        let holds_at = |grains: u64| far.holds_at(&shares[0], grains.into());
        let some = inputs.number(u64::MAX >> 1, 4);
        assert!(holds_at(some / 2) <= holds_at(some) && holds_at(u64::MAX >> 2) <= holds_at(u64::MAX >> 1));
        for round in 1..=5 {
            assert!(max_min.take(&mut share, taken).is_some());
            now = max_min.holds_at(&share, burst.into());
            assert_eq!(now - begun, lasts(round), "round {round}");
            // The same instant again changes nothing.
            max_min.advance(now);
            max_min.advance(now);
        }
        let later = now + 2 + inputs.number(1 << 20, 2);
        max_min.advance(later);
        assert!(max_min.take(&mut share, taken).is_some());
        assert_eq!(max_min.holds_at(&share, burst.into()) - later, lasts(1));
    });
}
