//! The checker of tenants: histories of a lawful store pass, and each bug of a store is found for what it is.

use crate::lawful::{BARS, at};
use crate::rig::checker::{Allowed, Fault, Of, Report, check_in_use, check_permits, check_spent};
use crate::rig::history::{Ask, Event};
use crate::rig::instant::nanos;
use crate::rig::spender::{Bound, Meter};
use crate::rig::tenants::{BUSY, LEGS, LENGTH, Leg, MOST_TOKENS, PERMITS, PERMITS_LEG, Tenant};
use std::collections::{BTreeMap, VecDeque};

/// In milliseconds, as all times here.
const TTL: u64 = 1_000;
const RENEWAL: u64 = 300;
const KILLED: u64 = 2_000;
const RESTARTED: u64 = 4_000;
const UP_AGAIN: u64 = 4_050;
const EXPIRED: u64 = 6_000;
/// Callers ask nothing more, and leave.
const CLOSING: u64 = 7_500;
const LEFT: u64 = 8_000;
const END: u64 = 9_000;
const PROCESSES: u32 = 4;
const SEEDS: std::ops::Range<u64> = 0..4;

/// What is wrong with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    /// A refused call has taken from the legs before the one that refused.
    RefusedCharges,
    /// After a restart permits are given at once, though others hold those from before.
    TwiceAfterRestart,
    /// A key goes before its rates are full.
    ExpiresEarly,
    /// The lease of a dead process does not end.
    DeadHold,
    /// A step that is repeated corrects twice.
    CorrectsTwice,
    /// A window counts for half of its length.
    HalfWindow,
    /// One of many returns is not noted.
    KeepsReturned,
}

/// The legs of one tenant, as a store counts them.
struct Store {
    bug: Option<Bug>,
    tenant: Tenant,
    now: u64,
    /// What is taken of each rate.
    levels: [f64; 2],
    window: VecDeque<(u64, u64)>,
    /// By process: the permits, and when the lease ends.
    leases: BTreeMap<u32, (u64, u64)>,
    /// No permits are given before.
    frozen: u64,
    returns: u64,
}

impl Store {
    fn rate(&self, leg: Leg) -> (u64, u64) {
        match self.tenant.bound(leg) {
            Bound::Rate { per_second, burst } => (per_second, burst),
            Bound::Window { .. } => unreachable!("{leg:?}"),
        }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn pass(&mut self, now: u64) {
        self.now = now;
        for (n, leg) in [Leg::Requests, Leg::Tokens].into_iter().enumerate() {
            self.levels[n] = (self.levels[n] - self.rate(leg).0 as f64 / 1e3).max(0.0);
        }
        let length = LENGTH.as_millis() as u64 / if self.has(Bug::HalfWindow) { 2 } else { 1 };
        while self.window.front().is_some_and(|(at, _)| at + length <= now) {
            self.window.pop_front();
        }
        let dead = self.has(Bug::DeadHold).then_some(PROCESSES - 1);
        self.leases
            .retain(|process, lease| lease.1 > now || dead == Some(*process));
        if now == EXPIRED && self.has(Bug::ExpiresEarly) {
            self.levels = [0.0; 2];
        }
        if now == RESTARTED {
            (self.levels, self.window, self.leases) = Default::default();
            self.frozen = if self.has(Bug::TwiceAfterRestart) {
                0
            } else {
                UP_AGAIN + TTL
            };
        }
    }

    fn take(&mut self, process: u32, slots: u64, tokens: u64, is_first: bool) -> Result<(), &'static str> {
        let used: u64 = self.leases.values().map(|lease| lease.0).sum();
        let spent: u64 = self.window.iter().map(|(_, units)| units).sum();
        let Bound::Window { limit, .. } = self.tenant.bound(Leg::Spend) else {
            unreachable!("it is a window")
        };
        let fits = |level: f64, units: u64, leg| level + units as f64 <= self.rate(leg).1 as f64;
        let refusal = if slots > 0 && (used + slots > PERMITS || self.now < self.frozen) {
            Some(PERMITS_LEG)
        } else if !fits(self.levels[0], 1, Leg::Requests) {
            Some(Leg::Requests.name())
        } else if !fits(self.levels[1], tokens, Leg::Tokens) {
            Some(Leg::Tokens.name())
        } else {
            (spent + tokens > limit).then_some(Leg::Spend.name())
        };
        let charges = refusal.is_none() || is_first && self.has(Bug::RefusedCharges);
        if charges && fits(self.levels[1], tokens, Leg::Tokens) {
            self.levels[1] += tokens as f64;
        }
        if let Some(leg) = refusal {
            return Err(leg);
        }
        self.levels[0] += 1.0;
        match self.window.back_mut() {
            Some((at, units)) if *at == self.now => *units += tokens,
            _ => self.window.push_back((self.now, tokens)),
        }
        if slots > 0 {
            self.leases.entry(process).or_insert((0, self.now + TTL)).0 += slots;
        }
        Ok(())
    }

    fn give_back(&mut self, process: u32, slots: u64, taken: u64, (charged, kept): (u64, u64)) {
        self.returns += 1;
        let forgets = self.has(Bug::KeepsReturned) && self.returns.is_multiple_of(50);
        if let Some(lease) = self.leases.get_mut(&process).filter(|_| !forgets) {
            lease.0 = lease.0.saturating_sub(slots);
        }
        if taken < UP_AGAIN && self.now > RESTARTED {
            return;
        }
        let time = (self.now - taken) as f64 / 1e3;
        let refilled = time * self.rate(Leg::Tokens).0 as f64;
        let times = if self.has(Bug::CorrectsTwice) { 2.0 } else { 1.0 };
        let back = times * ((charged - kept) as f64).min((charged as f64 - refilled).max(0.0));
        self.levels[1] = (self.levels[1] - back).max(0.0);
        if let Some(segment) = self.window.iter_mut().find(|segment| segment.0 == taken) {
            segment.1 -= charged - kept;
        }
    }
}

struct Caller {
    ask: Ask,
    slots: u64,
    tokens: (u64, u64),
    at_once: bool,
    /// The store was asked before.
    is_tried: bool,
    asked: u64,
    next: u64,
    /// When it was granted, and when it gives back.
    held: Option<(u64, u64)>,
}

/// A run of nine seconds at one tenant, different for each `seed`: four processes of some callers, of which one is killed after two seconds,
/// and a server that has forgotten everything after four.
#[allow(clippy::too_many_lines, reason = "one instant after the other")]
fn history(key: u32, bug: Option<Bug>, seed: u64) -> Vec<Event> {
    let mut random = seed.wrapping_mul(2) | 1;
    let mut draw = move |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (limit, sent, done) = (PERMITS, 0, at(0));
    let mut events = vec![Event::Limit { key, limit, sent, done }];
    let mut store = Store {
        bug,
        tenant: Tenant::of(key),
        now: 0,
        levels: [0.0; 2],
        window: VecDeque::new(),
        leases: BTreeMap::new(),
        frozen: 0,
        returns: 0,
    };
    // No more than it takes to bind: who waits for long is granted at an unknown instant.
    let tasks = if key == BUSY { 5 } else { 3 };
    let callers = (0..PROCESSES).flat_map(|process| (0..tasks).map(move |task| (process, task << 32)));
    let mut callers: Vec<Caller> = callers
        .map(|(process, number)| Caller {
            ask: Ask { process, number, key },
            slots: 0,
            tokens: (0, 0),
            at_once: false,
            is_tried: false,
            asked: 0,
            next: 1,
            held: None,
        })
        .collect();
    let mut queue: VecDeque<Ask> = VecDeque::new();
    let mut renewed = [0; PROCESSES as usize];
    for now in 1..END {
        store.pass(now);
        let (fault, instant) = ("server restarted".to_owned(), at(now));
        match now {
            KILLED => {
                let gone = |ask: &Ask| ask.process == PROCESSES - 1;
                let processes = vec![PROCESSES - 1];
                events.push(Event::Killed {
                    processes: processes.clone(),
                    at: instant,
                });
                events.push(Event::Gone { processes, at: instant });
                queue.retain(|ask| !gone(ask));
                callers.retain(|caller| !gone(&caller.ask));
            }
            RESTARTED => events.push(Event::Fault { fault, at: instant }),
            LEFT => {
                let (at, at_the_grant) = (instant, false);
                let left = queue.drain(..).map(|ask| Event::Cancelled { ask, at, at_the_grant });
                events.extend(left);
            }
            UP_AGAIN => events.push(Event::Healed { fault, at: instant }),
            _ => {}
        }
        if (RESTARTED..UP_AGAIN).contains(&now) {
            continue;
        }
        for process in 0..PROCESSES {
            let is_dead = now >= KILLED && process == PROCESSES - 1;
            if is_dead || now % RENEWAL != u64::from(process) * 70 {
                continue;
            }
            let held: u64 = callers
                .iter()
                .filter(|caller| caller.ask.process == process && caller.held.is_some())
                .map(|caller| caller.slots)
                .sum();
            let known = store.leases.get(&process).map_or(0, |lease| lease.0);
            renewed[process as usize] = now;
            for caller in callers.iter_mut().filter(|caller| caller.ask.process == process) {
                let (ask, deadline) = (caller.ask, at(now + TTL - 10));
                if caller.held.is_none() {
                    continue;
                }
                if held > known {
                    events.push(Event::Lost {
                        ask,
                        at: at(now),
                        deadline,
                    });
                    (caller.held, caller.next) = (None, now + 1);
                    caller.ask.number += 1;
                } else {
                    events.push(Event::Held { ask, deadline });
                }
            }
            if held > known {
                store.leases.remove(&process);
            } else if let Some(lease) = store.leases.get_mut(&process) {
                lease.1 = now + TTL;
            }
        }
        for caller in &mut callers {
            if let Some((taken, back)) = caller.held
                && back <= now
            {
                let ask = caller.ask;
                events.push(Event::Released {
                    ask,
                    at: at(now) - 1,
                    deadline: at(now),
                });
                store.give_back(ask.process, caller.slots, taken, caller.tokens);
                (caller.held, caller.next) = (None, now + 1 + draw(5));
                caller.ask.number += 1;
            }
            if caller.held.is_none() && caller.next == now && now < CLOSING {
                let charged = 1 + draw(MOST_TOKENS);
                caller.tokens = (charged, draw(2 * MOST_TOKENS).min(charged));
                (caller.slots, caller.at_once, caller.asked) = (draw(1 + BARS.heaviest), draw(3) == 0, now);
                events.push(Event::Asked {
                    ask: caller.ask,
                    weight: caller.slots,
                    at: at(now),
                });
                caller.is_tried = false;
                queue.push_back(caller.ask);
            }
        }
        let mut is_blocked = false;
        queue.retain(|ask| {
            let caller = callers.iter_mut().find(|caller| caller.ask == *ask).expect("it waits");
            let taken = if is_blocked && caller.slots > 0 {
                Err(PERMITS_LEG)
            } else {
                store.take(ask.process, caller.slots, caller.tokens.0, !caller.is_tried)
            };
            caller.is_tried |= !is_blocked;
            match taken {
                Ok(()) => {
                    // Permits that are held when a process dies, or the server restarts, are held for long.
                    let long = (KILLED - 500..KILLED).contains(&now) && ask.process == PROCESSES - 1
                        || (RESTARTED - 500..RESTARTED).contains(&now) && ask.process == 0;
                    let lasts = if long { 1_200 } else { 1 + draw(40) };
                    caller.held = Some((now, now + 1 + lasts));
                    let sent = renewed[ask.process as usize].max(1);
                    events.push(Event::Granted {
                        ask: *ask,
                        weight: caller.slots,
                        token: 0,
                        tokens: caller.tokens,
                        sent: at(caller.asked),
                        received: at(now) + draw(900_000),
                        deadline: at(sent + TTL - 10),
                    });
                    false
                }
                Err(leg) => {
                    is_blocked |= caller.slots > 0;
                    if caller.at_once {
                        events.push(Event::Refused {
                            ask: *ask,
                            at: at(now),
                            why: leg.into(),
                        });
                        caller.next = now + 10 + draw(40);
                        caller.ask.number += 1;
                    }
                    !caller.at_once
                }
            }
        });
    }
    let spent = store.window.iter().map(|(_, units)| units).sum();
    let permits = store.leases.values().map(|lease| lease.0).sum();
    let [requests, tokens] = store.levels.map(|level| level.ceil() as u64);
    events.push(Event::InUse {
        key,
        units: [requests, tokens, spent, permits],
        at: at(END),
    });
    events
}

fn report(key: u32, bug: Option<Bug>, seed: u64) -> Report {
    let events = history(key, bug, seed);
    let permits_bind = key == BUSY;
    let mut report = check_permits(&events, Of::Tenant { key, permits_bind }, BARS);
    let allowed = Allowed {
        dry: nanos(LENGTH) + 2 * BARS.life,
        forgets: true,
    };
    check_spent(&events, &LEGS.map(|leg| Meter::Leg(key, leg)), allowed, &mut report);
    check_in_use(&events, &mut report);
    report
}

#[test]
fn lawful_tenants_pass() {
    for (key, seed) in (1..=BUSY).flat_map(|key| SEEDS.map(move |seed| (key, seed))) {
        let report = report(key, None, seed);
        assert_eq!(report.faults, [], "{key} {seed} {report:?}");
        assert!(report.returned > 0 && report.refused > 0, "{key} {seed} {report:?}");
        assert!(
            key < BUSY || report.lost > 0 && report.recoveries[0].weight > 0,
            "{seed} {report:?}"
        );
    }
}

/// Each bug is found at every seed, at the tenant where it shows.
#[test]
fn each_bug_of_a_store_is_found() {
    let meter = |fault: &Fault| match fault {
        Fault::OverSpent { meter, .. } => Some(*meter),
        _ => None,
    };
    type IsFound<'a> = &'a dyn Fn(&Fault) -> bool;
    let bugs: [(Bug, u32, IsFound<'_>); 7] = [
        (Bug::RefusedCharges, 1, &|fault| {
            matches!(
                fault,
                Fault::Charged {
                    leg: Some(Leg::Tokens),
                    ..
                }
            )
        }),
        (Bug::TwiceAfterRestart, BUSY, &|fault| {
            matches!(fault, Fault::OverLimit { .. })
        }),
        (Bug::ExpiresEarly, 2, &|fault| {
            meter(fault) == Some(Meter::Leg(2, Leg::Tokens))
        }),
        (Bug::DeadHold, BUSY, &|fault| {
            matches!(fault, Fault::SlowRecovery { .. })
        }),
        (Bug::CorrectsTwice, 2, &|fault| {
            meter(fault) == Some(Meter::Leg(2, Leg::Tokens))
        }),
        (Bug::HalfWindow, 3, &|fault| {
            meter(fault) == Some(Meter::Leg(3, Leg::Spend))
        }),
        (Bug::KeepsReturned, 1, &|fault| {
            matches!(fault, Fault::Charged { leg: None, .. } | Fault::Stuck { .. })
        }),
    ];
    for (bug, key, is_found) in bugs {
        for seed in SEEDS {
            let report = report(key, Some(bug), seed);
            assert!(report.faults.iter().any(is_found), "{bug:?} {seed}: {report:?}");
        }
    }
}
