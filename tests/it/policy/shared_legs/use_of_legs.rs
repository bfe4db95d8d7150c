//! The share of each leg that policies use while all of them always have waiters, and the steps that an admission takes.

use super::{Counted, Woken, event};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tollgate::{FixedWindow, Legs, ManualClock, Permit, Policy, Quota, Semaphore, TokenBucket};

/// A leg, and its units in a second: those that start, or those that are held.
#[derive(Clone)]
enum Shared {
    Bucket(Arc<TokenBucket>, f64),
    Semaphore(Arc<Semaphore>, f64),
    Window(Arc<FixedWindow>, f64),
}

type Admission = Pin<Box<dyn Future<Output = Result<Permit<Policy<Legs>>, tollgate::Refusal>>>>;

struct Member {
    policy: Policy<Legs>,
    legs: Vec<usize>,
    units: Vec<u64>,
    hold: Vec<Duration>,
    waits: VecDeque<(Admission, Arc<Woken>, Waker, u64)>,
    asked: usize,
    served: u64,
}

struct World {
    clock: ManualClock,
    depth: usize,
    legs: Vec<Shared>,
    used: Vec<f64>,
    members: Vec<Member>,
    held: Vec<(Duration, Permit<Policy<Legs>>)>,
    looks: u64,
}

impl World {
    fn new(depth: usize) -> Self {
        Self {
            clock: ManualClock::new(),
            depth,
            legs: Vec::new(),
            used: Vec::new(),
            members: Vec::new(),
            held: Vec::new(),
            looks: 0,
        }
    }

    fn add(&mut self, leg: Shared) -> usize {
        self.legs.push(leg);
        self.used.push(0.0);
        self.legs.len() - 1
    }

    fn bucket(&mut self, rate: u64, burst: u64) -> usize {
        let bucket = TokenBucket::new(Quota::per_second(rate).burst(burst)).on(&self.clock);
        self.add(Shared::Bucket(Arc::new(bucket), rate as f64))
    }

    fn semaphore(&mut self, limit: usize) -> usize {
        self.add(Shared::Semaphore(Arc::new(Semaphore::new(limit)), limit as f64))
    }

    fn window(&mut self, limit: u64, length: Duration) -> usize {
        let window = FixedWindow::new(limit, length).unwrap().on(&self.clock);
        self.add(Shared::Window(Arc::new(window), limit as f64 / length.as_secs_f64()))
    }

    /// A policy of these legs, whose requests take `units` and are held for `hold` milliseconds, in turn.
    fn member(&mut self, legs: &[usize], units: &[u64], hold: &[u64]) {
        let mut all = Legs::new();
        for &leg in legs {
            match self.legs[leg].clone() {
                Shared::Bucket(bucket, _) => all.push(Counted(bucket)),
                Shared::Semaphore(semaphore, _) => all.push(Counted(semaphore)),
                Shared::Window(window, _) => all.push(Counted(window)),
            }
        }
        self.members.push(Member {
            policy: Policy::builder().limit(all).on(&self.clock).build().unwrap(),
            legs: legs.to_vec(),
            units: units.to_vec(),
            hold: hold.iter().map(|&ms| Duration::from_millis(ms)).collect(),
            waits: VecDeque::new(),
            asked: 0,
            served: 0,
        });
    }

    /// Fills the queues, and takes what was admitted, until nothing moves.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for at in 0..self.members.len() {
                let (member, depth, now) = (&mut self.members[at], self.depth, self.clock.elapsed());
                while member.waits.len() < depth {
                    let units = member.units[member.asked % member.units.len()];
                    member.asked += 1;
                    let (woken, waker) = Woken::new();
                    let future: Admission = Box::pin(member.policy.admit_owned(units));
                    member.waits.push_back((future, woken, waker, units));
                }
                let mut waits = std::mem::take(&mut member.waits);
                waits.retain_mut(|(future, woken, waker, units)| {
                    if !woken.take() {
                        return true;
                    }
                    let (polled, looks) = event(|| future.as_mut().poll(&mut Context::from_waker(waker)));
                    self.looks += looks;
                    let Poll::Ready(end) = polled else { return true };
                    let hold = member.hold[member.served as usize % member.hold.len()];
                    for &leg in &member.legs {
                        self.used[leg] += match self.legs[leg] {
                            Shared::Semaphore(..) => *units as f64 * hold.as_secs_f64(),
                            _ => *units as f64,
                        };
                    }
                    member.served += 1;
                    moved = true;
                    match hold.is_zero() {
                        true => drop(end.unwrap()),
                        false => self.held.push((now + hold, end.unwrap())),
                    }
                    false
                });
                member.waits = waits;
            }
            if !moved {
                return;
            }
        }
    }

    /// Returns the used share of each leg, and the admissions of each member.
    fn run(&mut self, seconds: u64, step: Duration) -> (Vec<f64>, Vec<u64>) {
        let end = self.clock.elapsed() + Duration::from_secs(seconds);
        self.settle();
        while self.clock.elapsed() < end {
            self.clock.advance(step);
            let now = self.clock.elapsed();
            let mut at = 0;
            while at < self.held.len() {
                match self.held[at].0 <= now {
                    true => drop(self.held.swap_remove(at)),
                    false => at += 1,
                }
            }
            self.settle();
        }
        let share = |(leg, used): (&Shared, &f64)| match leg {
            Shared::Bucket(_, each) | Shared::Semaphore(_, each) | Shared::Window(_, each) => {
                used / (each * seconds as f64)
            }
        };
        let used = self.legs.iter().zip(&self.used).map(share).collect();
        let served = self.members.iter().map(|member| member.served).collect();
        self.held.clear();
        (used, served)
    }
}

const STEP: Duration = Duration::from_micros(500);

/// Each leg is used to 0.85 at least, and where all members need the same, each gets half of an equal share at least.
#[track_caller]
fn check(world: &mut World, least: f64, equals: &[usize]) {
    let (used, served) = world.run(10, STEP);
    assert!(
        used.iter().all(|&used| used >= least),
        "used {used:?}, served {served:?}"
    );
    let mean = equals.iter().map(|&at| served[at]).sum::<u64>() / equals.len().max(1) as u64;
    assert!(equals.iter().all(|&at| served[at] * 2 >= mean), "served {served:?}");
    assert!(served.iter().all(|&served| served > 0), "served {served:?}");
}

#[test]
fn a_slow_and_a_fast_rate_are_both_used_up() {
    for burst in [1, 10] {
        let mut world = World::new(3);
        let (slow, fast) = (world.bucket(10, 1), world.bucket(1_000, burst));
        world.member(&[slow, fast], &[1], &[0]);
        world.member(&[slow], &[1], &[0]);
        world.member(&[fast], &[1], &[0]);
        check(&mut world, 0.85, &[0, 1]);
    }
}

#[test]
fn two_equal_rates_serve_policies_of_both_and_of_each() {
    let mut world = World::new(3);
    let (a, b) = (world.bucket(100, 10), world.bucket(100, 10));
    for at in 0..6 {
        world.member(if at % 2 == 0 { &[0, 1] } else { &[1, 0] }, &[1], &[0]);
    }
    world.member(&[a], &[1], &[0]);
    world.member(&[b], &[1], &[0]);
    check(&mut world, 0.85, &[0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn full_semaphores_of_tenants_do_not_stop_a_shared_rate() {
    let mut world = World::new(3);
    let rate = world.bucket(100, 1);
    for _ in 0..4 {
        let own = world.semaphore(2);
        world.member(&[rate, own], &[1], &[1_000]);
    }
    world.member(&[rate], &[1], &[0]);
    let (used, served) = world.run(10, STEP);
    assert!(used[0] >= 0.85 && served[4] >= 700, "used {used:?}, served {served:?}");
}

#[test]
fn a_rate_and_a_semaphore_are_both_used_up() {
    let mut world = World::new(3);
    let (rate, slots) = (world.bucket(100, 1), world.semaphore(4));
    for _ in 0..4 {
        world.member(&[rate, slots], &[1], &[40]);
    }
    world.member(&[rate], &[1], &[0]);
    world.member(&[slots], &[1], &[40]);
    check(&mut world, 0.85, &[0, 1, 2, 3]);
}

#[test]
fn a_window_and_a_rate_are_both_used_up() {
    let mut world = World::new(3);
    let (window, rate) = (world.window(50, Duration::from_millis(500)), world.bucket(150, 5));
    world.member(&[window, rate], &[1], &[0]);
    world.member(&[rate, window], &[1], &[0]);
    world.member(&[rate], &[1], &[0]);
    world.member(&[window], &[1], &[0]);
    check(&mut world, 0.85, &[]);
}

#[test]
fn two_semaphores_are_both_used() {
    let mut world = World::new(3);
    let (a, b) = (world.semaphore(4), world.semaphore(4));
    for legs in [&[a, b][..], &[b, a], &[a], &[b]] {
        world.member(legs, &[1], &[10, 50, 25]);
    }
    check(&mut world, 0.85, &[]);
}

/// Tenants whose own slots are full of other work keep few places at the slots that they share.
#[test]
fn full_slots_of_tenants_leave_shared_slots_to_others() {
    let mut world = World::new(3);
    let shared = world.semaphore(8);
    for _ in 0..8 {
        let own = world.semaphore(1);
        world.member(&[shared, own], &[1], &[500]);
        world.member(&[own], &[1], &[500]);
    }
    world.member(&[shared], &[1], &[5]);
    let (used, served) = world.run(10, STEP);
    assert!(
        used[0] >= 0.85 && served[16] > 4_000,
        "used {used:?}, served {served:?}"
    );
}

/// However many policies wait at a leg, an admission takes a bounded number of looks at legs.
#[test]
fn the_looks_of_an_admission_do_not_grow_with_the_policies() {
    for policies in [2, 10, 100, 1_000] {
        type Setting = (&'static str, fn(&mut World));
        let settings: [Setting; 4] = [
            ("a rate", |world| {
                world.bucket(10_000, 1);
            }),
            ("two rates", |world| {
                world.bucket(10_000, 1);
                world.bucket(9_000, 1);
            }),
            ("a semaphore", |world| {
                world.semaphore(4);
            }),
            ("both", |world| {
                world.semaphore(4);
                world.bucket(2_500, 1);
            }),
        ];
        for (name, setting) in settings {
            let mut world = World::new(2);
            setting(&mut world);
            let two = world.legs.len() == 2;
            let hold: &[u64] = if name == "two rates" || name == "a rate" {
                &[0]
            } else {
                &[1, 2]
            };
            for at in 0..policies {
                let legs: &[usize] = match (two, at % 4) {
                    (false, _) | (true, 2) => &[0],
                    (true, 0) => &[0, 1],
                    (true, 1) => &[1, 0],
                    _ => &[1],
                };
                world.member(legs, &[1], hold);
            }
            world.run(1, STEP);
            let before: u64 = world.members.iter().map(|member| member.served).sum();
            world.looks = 0;
            for _ in 0..500 {
                world.looks += event(|| world.clock.advance(STEP)).1;
                let now = world.clock.elapsed();
                let due: Vec<_> = world.held.extract_if(.., |held| held.0 <= now).collect();
                world.looks += event(|| drop(due)).1;
                world.settle();
            }
            let admitted = world.members.iter().map(|member| member.served).sum::<u64>() - before;
            let each = world.looks as f64 / admitted as f64;
            assert!(
                admitted > 200 && each <= 60.0,
                "{policies} policies at {name}: {each} looks for each of {admitted}"
            );
        }
    }
}
