//! Steps at a key with two legs: calls by a rate, and slots, which are permits.
//!
//! What the store does with a step is the library's reference. The client is modelled: it repeats a step until it is answered, renews
//! what it has at each tick, and takes a lease as over two ticks after the step was first sent.
//!
//! Faults: an answer is lost; a step comes a second time, at any later instant; a process dies, or is paused for any time; the news that
//! slots are free is lost.

use super::backend::Rule;
use super::model::KeyLegs;
use super::step::{KeyLease, KeyLeg, LegUsage, Step};
use crate::rate::Quota;
use crate::search::exhaust;
use stateright::{Model, Property};
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::time::Duration;

const TTL: u64 = 2;
/// Calls, of which none comes back in a model's time, and slots.
const CALLS: u64 = 2;
const SLOTS: u64 = 2;

/// A space.
#[derive(Clone, Debug)]
struct World {
    /// By client, how many slots an admission needs.
    needs: Vec<u64>,
    asks: u8,
    ticks: u64,
    faults: u8,
}

#[derive(Clone, Debug)]
struct State {
    now: u64,
    key: KeyLegs,
    clients: Vec<Client>,
    notified: BTreeSet<u64>,
    /// Steps that come again.
    late: Vec<Step>,
    /// The admissions that the store has answered, by their first answers.
    admitted: u64,
    faults: u8,
    /// A refusal has named a leg with room.
    misleads: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Runs,
    Paused,
    Dead,
}

#[derive(Clone, Debug)]
struct Client {
    process: Process,
    asks: u8,
    waits: bool,
    held: u64,
    /// When its lease is over.
    deadline: u64,
    /// It has something to send, or has waited for a tick.
    due: bool,
    seq: u64,
    /// The step that is not answered, and when it was first sent.
    sent: Option<(Step, u64)>,
    /// The last step that the store has answered.
    done: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Tick,
    Ask(usize),
    Leave(usize),
    Return(usize),
    Exchange(usize),
    Notify(usize),
    Resume(usize),
    CarryOutLate(usize),
    // Faults.
    LoseAnswer(usize),
    Break(usize),
    Die(usize),
    Pause(usize),
    LoseNews(usize),
}

fn legs() -> [KeyLeg; 2] {
    let quota = Quota::per_hour(1).burst(CALLS);
    [
        KeyLeg::new("calls", Rule::Rate { quota }),
        KeyLeg::new("slots", Rule::Permits { limit: SLOTS }),
    ]
}

fn ticks(ticks: u64) -> Duration {
    Duration::from_micros(ticks)
}

impl Client {
    fn new(asks: u8) -> Self {
        Self {
            process: Process::Runs,
            asks,
            waits: false,
            held: 0,
            deadline: 0,
            due: false,
            seq: 0,
            sent: None,
            done: 0,
        }
    }

    fn runs(&self) -> bool {
        self.process == Process::Runs
    }

    fn step(&mut self, id: usize, need: u64, now: u64) -> (Step, u64) {
        if let Some(sent) = self.sent.take() {
            return sent;
        }
        self.seq += 1;
        let mut step = Step::new(id as u64 + 1, self.seq, ticks(10));
        if self.waits {
            step.takes.push(KeyLeg::units([1, need]));
        }
        step.lease = Some(KeyLease {
            ttl: ticks(TTL),
            held: KeyLeg::units([0, self.held]),
            waiting: 0,
        });
        (step, now)
    }

    /// Drops what it holds when the lease is over.
    fn advance(&mut self, now: u64) {
        if self.deadline <= now {
            self.held = 0;
        }
    }
}

impl State {
    fn usage(&self) -> Vec<LegUsage> {
        let mut look = Step::new(99, 1, ticks(0));
        look.grant = Some(KeyLeg::units([]));
        self.key.clone().step(self.now, &legs(), &look).usage
    }

    fn carry_out(&mut self, step: &Step) -> super::step::StepReply {
        let before = self.usage();
        let reply = self.key.step(self.now, &legs(), step);
        self.notified.extend(self.key.take_notified());
        let client = &mut self.clients[step.client as usize - 1];
        if step.seq <= client.done {
            return reply;
        }
        client.done = step.seq;
        for (units, take) in step.takes.iter().zip(&reply.takes) {
            match take {
                Ok(()) => self.admitted += 1,
                // Slots are refused behind others that wait, too.
                Err(refusal) if refusal.leg == 1 => {
                    self.misleads |= before[1].in_use + units[1] <= SLOTS && before[1].waiting == 0;
                }
                Err(_) => self.misleads |= before[0].in_use + units[0] <= CALLS,
            }
        }
        reply
    }

    fn exchange(&mut self, world: &World, id: usize) {
        let now = self.now;
        let (step, sent) = self.clients[id].step(id, world.needs[id], now);
        let reply = self.carry_out(&step);
        let client = &mut self.clients[id];
        client.due = false;
        if reply.lost {
            client.held = 0;
        }
        match reply.takes.first() {
            Some(Ok(())) => {
                // It has given up meanwhile, or the lease is over: the next step returns them.
                let wanted = std::mem::take(&mut client.waits);
                client.held += if wanted { world.needs[id] } else { 0 };
                client.due = !wanted;
            }
            // No call comes back in a model's time.
            Some(Err(refusal)) if refusal.leg == 0 => client.waits = false,
            _ => {}
        }
        client.deadline = sent + TTL;
        client.advance(now);
        // What it does not hold goes back.
        client.due |= client.held == 0 && matches!(reply.takes.first(), Some(Ok(())));
    }

    fn tick(&mut self) {
        self.now += 1;
        for client in self.clients.iter_mut().filter(|client| client.runs()) {
            client.due = client.held > 0 || client.waits || client.sent.is_some();
            client.advance(self.now);
        }
    }

    fn is_quiet(&self) -> bool {
        let busy = |(id, client): (usize, &Client)| client.runs() && (client.due || self.is_notified(id));
        !self.clients.iter().enumerate().any(busy)
    }

    fn is_notified(&self, id: usize) -> bool {
        self.clients[id].runs() && self.notified.contains(&(id as u64 + 1))
    }

    fn live_units(&self) -> u64 {
        let live = self.clients.iter().filter(|client| client.process != Process::Dead);
        live.filter(|client| client.deadline > self.now)
            .map(|client| client.held)
            .sum()
    }

    /// What is wrong at the end when no further fault happens, and all slots come back.
    fn ends_well(&self, world: &World) -> Result<(), String> {
        let mut state = self.clone();
        for _ in 0..4 * TTL {
            for _ in 0..8 {
                for id in 0..state.clients.len() {
                    let client = &mut state.clients[id];
                    client.process = if client.process == Process::Dead {
                        Process::Dead
                    } else {
                        Process::Runs
                    };
                    if !client.runs() {
                        continue;
                    }
                    client.advance(state.now);
                    if client.held > 0 {
                        (client.held, client.due) = (0, true);
                    }
                    client.due |= client.sent.is_some() || state.notified.remove(&(id as u64 + 1));
                    if state.clients[id].due {
                        state.exchange(world, id);
                    }
                }
            }
            state.tick();
        }
        if state.clients.iter().any(|client| client.runs() && client.waits) {
            return Err(format!("a waiter is stuck: {state:?}"));
        }
        let slots = &state.usage()[1];
        match (slots.in_use, slots.waiting) {
            (0, 0) => Ok(()),
            _ => Err(format!("slots or places are left: {state:?}")),
        }
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        format!("{self:?}").hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 10,
            key: KeyLegs::default(),
            clients: vec![Client::new(self.asks); self.needs.len()],
            notified: BTreeSet::new(),
            late: Vec::new(),
            admitted: 0,
            faults: self.faults,
            misleads: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.is_quiet() && state.now < 10 + self.ticks {
            actions.push(Action::Tick);
        }
        for (id, client) in state.clients.iter().enumerate() {
            if client.process == Process::Paused {
                actions.push(Action::Resume(id));
            }
            if !client.runs() {
                continue;
            }
            if client.asks > 0 && !client.waits && client.held == 0 {
                actions.push(Action::Ask(id));
            }
            if client.waits {
                actions.push(Action::Leave(id));
            }
            if client.held > 0 {
                actions.push(Action::Return(id));
            }
            if client.due {
                actions.push(Action::Exchange(id));
            }
            if state.is_notified(id) {
                actions.push(Action::Notify(id));
            }
            if state.faults > 0 {
                if client.due {
                    actions.extend([Action::LoseAnswer(id), Action::Break(id)]);
                }
                if state.is_notified(id) {
                    actions.push(Action::LoseNews(id));
                }
                actions.extend([Action::Die(id), Action::Pause(id)]);
            }
        }
        actions.extend((0..state.late.len()).map(Action::CarryOutLate));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let now = next.now;
        match action {
            Action::Tick => next.tick(),
            Action::Ask(id) => {
                let client = &mut next.clients[id];
                client.asks -= 1;
                (client.waits, client.due) = (true, true);
            }
            Action::Leave(id) => (next.clients[id].waits, next.clients[id].due) = (false, true),
            Action::Return(id) => (next.clients[id].held, next.clients[id].due) = (0, true),
            Action::Exchange(id) => next.exchange(self, id),
            Action::Notify(id) => {
                next.notified.remove(&(id as u64 + 1));
                next.clients[id].due |= next.clients[id].waits;
            }
            Action::Resume(id) => {
                let client = &mut next.clients[id];
                client.process = Process::Runs;
                client.advance(now);
                client.due |= client.held > 0 || client.waits;
            }
            Action::CarryOutLate(late) => {
                let step = next.late.remove(late);
                next.carry_out(&step);
            }
            fault => {
                next.faults -= 1;
                match fault {
                    Action::LoseAnswer(id) | Action::Break(id) => {
                        let (step, sent) = next.clients[id].step(id, self.needs[id], now);
                        if fault == Action::LoseAnswer(id) {
                            next.carry_out(&step);
                        } else {
                            next.late.push(step.clone());
                        }
                        next.clients[id].sent = Some((step, sent));
                    }
                    Action::Die(id) => {
                        next.clients[id].process = Process::Dead;
                        next.clients[id].waits = false;
                    }
                    Action::Pause(id) => next.clients[id].process = Process::Paused,
                    Action::LoseNews(id) => drop(next.notified.remove(&(id as u64 + 1))),
                    other => unreachable!("{other:?} is no fault"),
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "never more slots than the limit with live leases",
                |_: &World, state: &State| state.live_units() <= SLOTS,
            ),
            Property::always(
                "a call is taken for each admission, and for nothing else",
                |_: &World, state: &State| state.usage()[0].in_use == state.admitted,
            ),
            Property::always("a refusal names a leg without room", |_: &World, state: &State| {
                !state.misleads
            }),
            Property::always("no slot is lost, no waiter stuck", |world: &World, state: &State| {
                state.ends_well(world).is_ok()
            }),
        ]
    }
}

fn survives(name: &str, needs: &[u64], asks: u8, ticks: u64, faults: u8) {
    let world = World {
        needs: needs.to_vec(),
        asks,
        ticks,
        faults,
    };
    let again = world.clone();
    exhaust(name, world, move |state: &State| state.ends_well(&again).err());
}

#[test]
fn steps_with_two_legs_survive_a_fault() {
    survives("legs, two clients, one fault", &[1, 2], 1, 3, 1);
}

#[test]
fn a_step_that_a_leg_refuses_takes_nothing_from_the_other() {
    survives("legs, two clients that ask twice, no fault", &[1, 2], 2, 2, 0);
}

#[test]
#[ignore = "takes minutes"]
fn steps_with_two_legs_survive_two_faults() {
    survives("legs, two clients, two faults", &[1, 2], 1, 3, 2);
}

#[test]
#[ignore = "takes minutes"]
fn steps_of_clients_that_ask_twice_survive_a_fault() {
    survives("legs, two clients that ask twice, one fault", &[1, 2], 2, 3, 1);
}
