//! Histories of a store without faults: a first-come, first-served semaphore, simulated in milliseconds.

use crate::rig::checker::Bars;
use crate::rig::history::{Ask, Event};
use crate::rig::instant::Nanos;
use std::collections::VecDeque;

const MS: Nanos = 1_000_000;
/// The clock of a machine does not begin at zero.
const BEGIN: Nanos = 77_000 * MS;
const TTL: Nanos = 1_000;
const PROCESSES: u32 = 4;
const TASKS: u64 = 3;
const END: Nanos = 6_000;

pub(crate) const BARS: Bars = Bars {
    ttl: TTL * MS,
    life: TTL * MS,
    heaviest: 3,
};
/// Process 3 is killed.
pub(crate) const KILLED_AT: Nanos = at(2_000);
pub(crate) const SHRUNK_AT: Nanos = at(4_000);

pub(crate) const fn at(ms: Nanos) -> Nanos {
    BEGIN + ms * MS
}

struct Caller {
    process: u32,
    number: u64,
    weight: u64,
    asked: Nanos,
    /// When it asks again, when it gets its answer, and when it gives back.
    next: Nanos,
    told: Option<Nanos>,
    back: Option<Nanos>,
}

/// A run of six seconds, different for each `seed`: four processes of three callers, a limit of 5 which becomes 2 after four
/// seconds, and process 3 killed after two, with its permits.
pub(crate) fn history(seed: u64) -> Vec<Event> {
    let mut random = seed.wrapping_mul(2) | 1;
    let mut draw = move |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut events = vec![Event::Limit {
        key: 0,
        limit: 5,
        sent: 0,
        done: at(0),
    }];
    let mut callers: Vec<Caller> = (0..PROCESSES)
        .flat_map(|process| (0..TASKS).map(move |task| (process, task)))
        .map(|(process, task)| Caller {
            process,
            number: task << 32,
            weight: 0,
            asked: 0,
            next: 0,
            told: None,
            back: None,
        })
        .collect();
    let (mut limit, mut used, mut token) = (5, 0, 100);
    let mut line: VecDeque<usize> = VecDeque::new();
    // Permits of the dead come back when their session is over.
    let mut dead = 0;
    for now in 0..END {
        if now == 2_000 {
            events.push(Event::Killed {
                processes: vec![3],
                at: at(now),
            });
            events.push(Event::Gone {
                processes: vec![3],
                at: at(now),
            });
            let gone = |caller: &Caller| caller.process == 3;
            dead = callers
                .iter()
                .filter(|c| gone(c) && c.told.is_some())
                .map(|c| c.weight)
                .sum();
            line.retain(|&place| !gone(&callers[place]));
            callers.retain(|caller| !gone(caller));
        }
        if now == 2_000 + TTL - 10 {
            used -= dead;
        }
        if now == 4_000 {
            limit = 2;
            events.push(Event::Limit {
                key: 0,
                limit,
                sent: at(now),
                done: at(now + 2),
            });
        }
        for (place, caller) in callers.iter_mut().enumerate() {
            let ask = Ask {
                process: caller.process,
                number: caller.number,
                key: 0,
            };
            if caller.back == Some(now) {
                events.push(Event::Released {
                    ask,
                    at: at(now) - 1,
                    deadline: at(now + TTL / 2),
                });
                used -= caller.weight;
                (caller.told, caller.back) = (None, None);
                caller.next = now + 1 + draw(20);
                caller.number += 1;
            }
            if caller.next == now && now < END - 800 {
                let heaviest = if now < 3_500 { 3 } else { 2 };
                (caller.asked, caller.weight) = (now, 1 + draw(heaviest));
                events.push(Event::Asked {
                    ask: Ask {
                        process: caller.process,
                        number: caller.number,
                        key: 0,
                    },
                    weight: caller.weight,
                    at: at(now),
                });
                line.push_back(place);
            }
        }
        while let Some(&place) = line.front()
            && used + callers[place].weight <= limit
        {
            let caller = &mut callers[place];
            used += caller.weight;
            token += 1 + draw(3);
            // The answer takes a while; permits held when process 3 dies are held for long.
            let told = now + 1 + draw(3);
            let long = if caller.process == 3 && now > 1_500 { 1_000 } else { 0 };
            (caller.told, caller.back) = (Some(told), Some(told + 1 + draw(40) + long));
            events.push(Event::Granted {
                ask: Ask {
                    process: caller.process,
                    number: caller.number,
                    key: 0,
                },
                weight: caller.weight,
                token,
                tokens: (0, 0),
                sent: at(caller.asked),
                received: at(told),
                deadline: at(now + TTL),
            });
            line.pop_front();
        }
    }
    events.push(Event::Left { keys: 0 });
    events
}
