//! Permits at a store of plain values: Redis, PostgreSQL, Consul with a document, and memory.
//!
//! The client is the library's, and so is the step that the store carries out. Each client asks, waits or does not, holds for any time,
//! and returns; it may give up the wait. One tick is a microsecond, and a lease lasts three of them. Between two ticks what is under way
//! arrives, in any order, unless a fault holds it up.

use super::Settings;
use super::backend::{Rule, Session, StoreError, SyncReply, SyncRequest};
use super::client::client_state::visit_sync;
use super::client::{Action as Driven, Client, End, RemoteTicket, WaitKind};
use super::config::Prefetch;
use super::model::{Held, Permits, PermitsState, notification, sweep};
use crate::canonical::{Kind, Words, owner};
use crate::search::{are_alike, exhaust};
use crate::time::Instant;
use stateright::{Model, Property};
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

const TTL: u64 = 3;
const TIMEOUT: u64 = 1;

/// A space.
#[derive(Clone, Debug)]
pub(super) struct World {
    /// By client: how many units an ask needs, and whether it waits.
    pub(crate) needs: Vec<(u64, bool)>,
    pub(crate) limit: u64,
    /// How many times each client asks.
    pub(crate) asks: u8,
    pub(crate) faults: u8,
    /// By how many ticks the store's clock is set forward or back, which is a fault.
    pub(crate) jumps: &'static [i64],
    pub(crate) prefetch: Option<Prefetch>,
}

#[derive(Clone, Debug)]
pub(super) struct State {
    /// The names that clients may be given.
    orders: Arc<Vec<Vec<u64>>>,
    /// In microseconds.
    now: u64,
    faults: u8,
    clients: Vec<Node>,
    store: Store,
    /// Until when the server is away.
    away: u64,
    /// Syncs that may still be carried out, and whose answers are not awaited.
    late: Vec<SyncRequest>,
}

#[derive(Clone, Debug)]
struct Store {
    permits: PermitsState,
    clock: StoreClock,
    /// The last token of all.
    token: u64,
    notified: BTreeSet<Session>,
}

/// The clock of the store, which may be set. It goes on from where it was, as in the scripts of Redis and PostgreSQL.
#[derive(Clone, Copy, Debug, Default)]
struct StoreClock {
    /// What the server's clock is ahead of the time.
    shift: i64,
    /// The instant of the last sync, and how much later it was than the server's clock.
    last: u64,
    ahead: u64,
    /// When it was last set forward.
    jumped: u64,
    /// How far it is set back by a fault.
    reach: u64,
}

impl StoreClock {
    /// How far it may be set back yet.
    fn reach(&self, faults: u8) -> u64 {
        if faults > 0 { self.reach } else { 0 }
    }

    /// The server's clock at the time `now`.
    fn server(&self, now: u64) -> u64 {
        now.checked_add_signed(self.shift)
            .expect("the clock is set back by less than it shows")
    }

    /// The instant for the store.
    fn at(&self, now: u64) -> u64 {
        let clock = self.server(now);
        clock + self.ahead.max(self.last.saturating_sub(clock))
    }

    fn advance(&mut self, now: u64) -> u64 {
        let at = self.at(now);
        self.ahead = at - self.server(now);
        self.last = at;
        at
    }

    /// Whether holders may not have heard yet that their leases were jumped over: the next renewals are a tick away.
    fn is_fresh(&self, now: u64) -> bool {
        self.jumped > 0 && now <= self.jumped + 1
    }

    fn visit(&self, now: u64, reach: u64, words: &mut Words) {
        words.plain(self.ahead);
        words.plain((self.last + reach).saturating_sub(self.server(now)));
        words.plain((self.jumped + 2).saturating_sub(now));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Process {
    Runs,
    Paused,
    Dead,
}

/// A process.
#[derive(Clone, Debug)]
struct Node {
    client: Client,
    process: Process,
    exchange: Option<Exchange>,
    /// The instant and the session that the driver waits for.
    until: Option<Instant>,
    listens: Option<Session>,
    asks: u8,
    wait: Option<u64>,
    permit: Option<RemoteTicket>,
}

/// A sync under way, and its answer once it was carried out.
#[derive(Clone, Debug)]
struct Exchange {
    sync: SyncRequest,
    sent: u64,
    answer: Option<SyncReply>,
    /// It takes any time.
    is_slow: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    Ask(usize),
    /// The grant is taken, or the refusal.
    Take(usize),
    Leave(usize),
    Release(usize),
    /// The store carries the sync out, and its answer arrives.
    Exchange(usize),
    /// The same in two steps, when one of them is slow, or the process does not listen.
    CarryOut(usize),
    Answer(usize),
    TimeOut(usize),
    /// The server is away.
    Refuse(usize),
    Notify(usize),
    CarryOutLate(usize),
    /// Another client syncs, that is not modelled: sessions that have expired end.
    Sweep,
    Resume(usize),
    // Faults.
    Slow(usize),
    /// The connection breaks before the store has carried the sync out, or after it.
    Break(usize),
    LoseAnswer(usize),
    Duplicate(usize),
    LoseNotification(usize),
    Crash(usize),
    Pause(usize),
    /// The server is away for longer than a lease, and comes back with its memory.
    Outage,
    /// The server comes back empty.
    RestartEmpty,
    /// The server carries out the sync, and a replica that has missed it takes over.
    FailOver(usize),
    /// The server's clock is set.
    Jump(i64),
}

fn at(now: u64) -> Instant {
    Instant::from_ticks(now * 1_000)
}

impl Store {
    fn carry_out(&mut self, limit: u64, now: u64, sync: &SyncRequest) -> SyncReply {
        let mut permits = Permits::restore(self.permits.clone()).expect("a state that makes sense");
        let outcome = permits.sync(self.clock.advance(now), sync);
        self.set(limit, &permits);
        self.notified.extend(outcome.notify);
        outcome.reply
    }

    fn set(&mut self, limit: u64, permits: &Permits) {
        self.permits = permits.state().clone();
        self.token = self.token.max(self.permits.token);
        if self.permits.sessions.is_empty() {
            // The key goes, and with it what it says of the clock.
            (self.clock.last, self.clock.ahead) = (0, 0);
            self.permits = Permits::new(limit, self.token).state().clone();
        }
    }

    /// Another server, or one without its memory, grants nothing for a time to live: as if another session held all permits.
    fn freeze(&mut self, limit: u64, now: u64) {
        let held = Held {
            expires: self.clock.at(now) + TTL,
            granted: limit,
            ..Held::default()
        };
        self.permits.sessions.insert(Session { client: 0, number: 0 }, held);
        self.notified.clear();
    }

    /// Of sessions that no sync can reach any more but to end them, only what they hold is written.
    fn visit(&self, now: u64, faults: u8, reached: &[Session], words: &mut Words) {
        let reach = self.clock.reach(faults);
        self.clock.visit(now, reach, words);
        let (clock, now) = (self.clock.server(now) - reach, self.clock.at(now));
        let permits = &self.permits;
        let is_reached = |session: &Session| reached.contains(session);
        words.plain(permits.limit);
        for token in [permits.token, self.token] {
            words.plain((token + 1).saturating_sub(clock));
        }
        words.plain(permits.sessions.len() as u64);
        let mut sessions: Vec<_> = permits.sessions.iter().collect();
        words.sort(&mut sessions);
        for (&session, held) in sessions {
            words.session(session);
            words.plain(held.expires.saturating_sub(now));
            words.flag(is_reached(&session));
            if !is_reached(&session) {
                words.plain(held.granted - held.returned);
                continue;
            }
            words.number(Kind::Seq, owner(session), held.seq);
            words.units(session, held.granted);
            words.units(session, held.returned);
            words.bound(Kind::Request, session.client, held.asked);
            words.flag(held.keeps);
            words.plain(held.grants.len() as u64);
            for grant in &held.grants {
                words.number(Kind::Request, session.client, grant.request);
                words.plain(grant.units);
                words.token(session, grant.token);
            }
        }
        words.plain(permits.queue.len() as u64);
        for queued in permits.queue.values() {
            words.session(queued.session);
            if is_reached(&queued.session) {
                words.number(Kind::Request, queued.session.client, queued.request);
            }
            words.plain(queued.need);
            words.plain(queued.want);
        }
        let mut notified: Vec<_> = self.notified.iter().filter(|session| is_reached(session)).collect();
        notified.sort_by_key(|session| (words.name(session.client), session.number));
        words.plain(notified.len() as u64);
        for &session in notified {
            words.session(session);
        }
    }
}

impl State {
    fn live_units(&self) -> u64 {
        let alive = self.clients.iter().filter(|node| node.process != Process::Dead);
        alive.map(|node| node.client.live_units(at(self.now))).sum()
    }

    /// Runs the driver of a client until it waits.
    fn drive(&mut self, id: usize) {
        let (node, now) = (&mut self.clients[id], at(self.now));
        if node.process != Process::Runs || node.exchange.is_some() {
            return;
        }
        for _ in 0..100 {
            node.client.on_tick(now);
            let action = node.client.next_action(now);
            for ended in node.client.take_ended_sessions() {
                self.store.notified.remove(&ended);
            }
            node.client.take_wakers();
            match action {
                Driven::Send(sync) => {
                    node.exchange = Some(Exchange {
                        sync,
                        sent: self.now,
                        answer: None,
                        is_slow: false,
                    });
                    return;
                }
                Driven::Wait(until, session) => {
                    if node.client.poll_driver(Waker::noop().clone()).0 {
                        continue;
                    }
                    (node.until, node.listens) = (until, session);
                    return;
                }
                Driven::Stop => return,
            }
        }
        panic!("the driver spins");
    }

    fn ask(&mut self, id: usize, (need, waits): (u64, bool)) {
        let (node, now) = (&mut self.clients[id], at(self.now));
        let kind = if waits { WaitKind::Queued } else { WaitKind::Immediate };
        node.asks -= 1;
        node.wait = Some(node.client.join(need, kind, Waker::noop().clone(), now));
        self.drive(id);
    }

    fn has_ended(&self, id: usize) -> bool {
        let node = &self.clients[id];
        node.wait.is_some_and(|wait| node.client.waits_for(wait).is_none())
    }

    fn take(&mut self, id: usize) {
        let (node, now) = (&mut self.clients[id], at(self.now));
        let Some(wait) = node.wait else { return };
        if let (Some(end), _) = node.client.poll_wait(wait, Some(Waker::noop().clone()), now) {
            node.wait = None;
            if let End::Granted(ticket) = end {
                node.permit = Some(ticket);
            }
        }
        self.drive(id);
    }

    fn leave(&mut self, id: usize) {
        let (node, now) = (&mut self.clients[id], at(self.now));
        if let Some(wait) = node.wait.take() {
            node.client.leave(wait, now);
        }
        self.drive(id);
    }

    fn release(&mut self, id: usize) {
        let (node, now) = (&mut self.clients[id], at(self.now));
        if let Some(permit) = node.permit.take() {
            node.client.refund(permit, false, now);
        }
        self.drive(id);
    }

    fn carry_out(&mut self, limit: u64, id: usize) {
        let node = &mut self.clients[id];
        let Some(exchange) = &mut node.exchange else { return };
        exchange.answer = Some(self.store.carry_out(limit, self.now, &exchange.sync));
        if node.process == Process::Dead {
            node.exchange = None;
        }
    }

    /// Ends the exchange with its answer, or with an error: then the store may still carry it out.
    fn answer(&mut self, id: usize, error: Option<StoreError>) {
        let (node, now) = (&mut self.clients[id], at(self.now));
        let Some(exchange) = node.exchange.take() else { return };
        let answer = match (error, exchange.answer) {
            (None, Some(answer)) => Ok(answer),
            (Some(error), None) => {
                self.late.push(exchange.sync.clone());
                Err(error)
            }
            (Some(error), Some(_)) => Err(error),
            (None, None) => return,
        };
        node.client.on_reply(&exchange.sync, at(exchange.sent), now, answer);
        if exchange.sync.end && !node.client.is_ending(exchange.sync.session) {
            self.store.notified.remove(&exchange.sync.session);
        }
        self.drive(id);
    }

    /// The server is away: nothing is carried out.
    fn refuse(&mut self, id: usize) {
        let (node, now) = (&mut self.clients[id], at(self.now));
        let Some(exchange) = node.exchange.take() else { return };
        if node.process == Process::Runs {
            let why = "it is away".into();
            let refused = Err(StoreError::Unreachable { why });
            node.client.on_reply(&exchange.sync, at(exchange.sent), now, refused);
            self.drive(id);
        }
    }

    fn is_notified(&self, id: usize) -> bool {
        let node = &self.clients[id];
        let listens = node
            .listens
            .filter(|_| node.exchange.is_none() && node.process == Process::Runs);
        listens.is_some_and(|session| self.store.notified.contains(&session))
    }

    fn notify(&mut self, id: usize) {
        let (node, now) = (&mut self.clients[id], at(self.now));
        let Some(session) = node.listens else { return };
        self.store.notified.remove(&session);
        let permits = Permits::restore(self.store.permits.clone()).expect("a state that makes sense");
        node.client
            .on_notification(session, &notification(&permits, session), now);
        self.drive(id);
    }

    /// Whether all that takes no time has happened.
    fn is_quiet(&self) -> bool {
        (0..self.clients.len()).all(|id| {
            let node = &self.clients[id];
            let runs = node.process == Process::Runs;
            let waits = node.exchange.as_ref().is_none_or(|exchange| {
                // The answer comes just in time, or does not.
                let is_due = runs && exchange.sent + TIMEOUT <= self.now;
                let is_away = self.now < self.away && node.process == Process::Paused;
                !is_due && (exchange.is_slow || is_away || exchange.answer.is_some() && !runs)
            });
            waits && !self.is_notified(id) && !(runs && self.has_ended(id))
        })
    }

    fn tick(&mut self) {
        self.now += 1;
        for id in 0..self.clients.len() {
            self.catch_up(id);
        }
    }

    /// Does what is due at a client.
    fn catch_up(&mut self, id: usize) {
        let (node, now) = (&mut self.clients[id], at(self.now));
        if node.process != Process::Runs {
            return;
        }
        match &node.exchange {
            Some(_) => node.client.on_tick(now),
            None if node.until.is_some_and(|until| until <= now) => self.drive(id),
            None => {}
        }
    }

    /// Lets everything that is under way happen, without a fault, and all permits be returned, until nothing happens.
    fn settle(&mut self, limit: u64) {
        for _ in 0..1_000 {
            let mut is_quiet = true;
            for id in 0..self.clients.len() {
                let node = &self.clients[id];
                let runs = node.process == Process::Runs;
                let is_carried_out = node.exchange.as_ref().map(|exchange| exchange.answer.is_some());
                match is_carried_out {
                    Some(false) if self.now < self.away => self.refuse(id),
                    Some(false) => self.carry_out(limit, id),
                    Some(true) if runs => self.answer(id, None),
                    _ if self.is_notified(id) => self.notify(id),
                    _ if runs && self.has_ended(id) => self.take(id),
                    _ if runs && self.clients[id].permit.is_some() => self.release(id),
                    _ => continue,
                }
                is_quiet = false;
            }
            if is_quiet {
                return;
            }
        }
        panic!("it never settles");
    }

    /// What is wrong at the end when no further fault happens.
    ///
    /// Found out where all is quiet, no process paused, and no permit held: from elsewhere the end leads through such a state.
    fn ends_well(&self, limit: u64) -> Result<(), String> {
        let is_calm = |node: &Node| node.process != Process::Paused && node.permit.is_none();
        if !self.is_quiet() || !self.clients.iter().all(is_calm) {
            return Ok(());
        }
        let mut state = self.clone();
        state.late.clear();
        state.settle(limit);
        // A dead client, another server, and what comes of both one after the other.
        for _ in 0..5 * TTL {
            state.tick();
            state.settle(limit);
        }
        let runs = |node: &&Node| node.process == Process::Runs;
        if state.clients.iter().filter(runs).any(|node| node.wait.is_some()) {
            return Err(format!("a waiter is stuck: {state:?}"));
        }
        if state
            .clients
            .iter()
            .filter(runs)
            .any(|node| node.client.is_unavailable())
        {
            return Err("a store that is back is not found".into());
        }
        let mut permits = Permits::restore(state.store.permits.clone()).expect("a state that makes sense");
        sweep(&mut permits, state.store.clock.at(state.now));
        let sessions = permits.state().sessions.values();
        let held: u64 = sessions.map(|held| held.granted - held.returned).sum();
        if held > 0 {
            return Err(format!("{held} units are lost: {state:?}"));
        }
        for id in 0..state.clients.len() {
            state.clients[id].client.close();
            state.drive(id);
        }
        for _ in 0..TTL {
            state.settle(limit);
            state.tick();
        }
        if let Some(node) = state.clients.iter().filter(runs).find(|node| !node.client.is_stopped()) {
            return Err(format!("a client does not end: {node:?}"));
        }
        let mut permits = Permits::restore(state.store.permits.clone()).expect("a state that makes sense");
        sweep(&mut permits, state.store.clock.at(state.now));
        let PermitsState { sessions, queue, .. } = permits.state();
        if sessions.is_empty() && queue.is_empty() {
            Ok(())
        } else {
            Err(format!("a key is left: {sessions:?} {queue:?}"))
        }
    }

    /// The state as words.
    fn canonical(&self) -> Vec<u64> {
        let reached = self.reached();
        let token = (self.store.permits.token, self.faults > 0);
        let clock = self.store.clock.server(self.now) - self.store.clock.reach(self.faults);
        Words::least(self.now * 1_000, clock, token, &self.orders, |words| {
            words.plain(self.faults.into());
            words.plain(self.away.saturating_sub(self.now));
            let mut order: Vec<_> = (0..self.clients.len()).collect();
            order.sort_by_key(|&id| words.name(id as u64 + 1));
            for id in order {
                self.clients[id].visit(id as u64 + 1, words);
            }
            self.store.visit(self.now, self.faults, &reached, words);
            words.plain(self.late.len() as u64);
            let late = self
                .late
                .iter()
                .map(|sync| words.apart(|words| visit_sync(sync, words)));
            let mut late: Vec<_> = late.collect();
            late.sort_unstable();
            late.iter().flatten().for_each(|&word| words.plain(word));
        })
    }

    /// The syncs that the store may still carry out.
    fn on_their_way(&self) -> impl Iterator<Item = &SyncRequest> {
        let exchanges = self.clients.iter().filter_map(|node| node.exchange.as_ref());
        let unanswered = exchanges.filter(|exchange| exchange.answer.is_none());
        unanswered.map(|exchange| &exchange.sync).chain(&self.late)
    }

    /// The sessions that a sync may still reach, other than to end them.
    fn reached(&self) -> Vec<Session> {
        let alive = self.clients.iter().filter(|node| node.process != Process::Dead);
        let live = alive.filter_map(|node| node.client.session());
        let syncs = self.on_their_way().filter(|sync| !sync.end);
        live.chain(syncs.map(|sync| sync.session)).collect()
    }

    /// Whether the store does nothing with this sync, now or later.
    fn is_void(&self, late: &SyncRequest) -> bool {
        let session = late.session;
        let begins = self.clients.iter().filter(|node| node.process != Process::Dead);
        let begins = begins.filter(|node| node.client.begins() && node.client.session() == Some(session));
        let begun = self.on_their_way().filter(|sync| sync.session == session && sync.begin);
        if begins.count() + begun.count() > 0 {
            // It is one of them itself, or what they begin could be reached by it.
            return false;
        }
        let PermitsState { sessions, token, .. } = &self.store.permits;
        sessions
            .get(&session)
            .is_none_or(|held| !late.end && late.seq <= held.seq && late.acked <= held.seq && late.seen <= *token)
    }

    /// Drops what has no effect any more: late syncs, and permits that are lost.
    fn tidy(&mut self) {
        let late = self.late.iter().filter(|sync| !self.is_void(sync));
        self.late = late.cloned().collect();
        for node in self.clients.iter_mut().filter(|node| node.process == Process::Runs) {
            let client = &node.client;
            node.permit.take_if(|permit| !client.knows(permit));
        }
    }
}

impl Node {
    fn visit(&self, id: u64, words: &mut Words) {
        words.plain(self.process as u64);
        words.flag(self.exchange.is_some());
        if let Some(exchange) = &self.exchange {
            visit_sync(&exchange.sync, words);
            if self.process != Process::Dead {
                words.at(at(exchange.sent));
            }
            words.flag(exchange.is_slow);
            words.flag(exchange.answer.is_some());
            if let Some(answer) = &exchange.answer {
                words.flag(answer.alive);
                words.flag(answer.others_wait);
                words.plain(answer.again.map_or(0, |again| again.as_nanos() as u64 + 1));
                words.plain(answer.usage.limit);
                words.plain(answer.grants.len() as u64);
                for grant in &answer.grants {
                    words.number(Kind::Request, id, grant.request);
                    words.plain(grant.units);
                    words.token(exchange.sync.session, grant.token);
                }
            }
        }
        if self.process == Process::Dead {
            return;
        }
        self.client.visit(id, words);
        words.plain(self.asks.into());
        words.number(Kind::Wait, id, self.wait.unwrap_or(0));
        words.flag(self.permit.is_some());
        if let Some(permit) = &self.permit {
            permit.visit(id, words);
        }
    }
}

/// By the state as words: clients that are alike are interchangeable, so of all their orders the least is meant.
impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canonical().hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.canonical() == other.canonical()
    }
}

/// The names of clients by their numbers, in each order of those that are alike.
fn orders(needs: &[(u64, bool)]) -> Vec<Vec<u64>> {
    let mut orders = vec![vec![0]];
    for need in needs {
        let longer = orders.into_iter().flat_map(|names: Vec<u64>| {
            let is_free = |name: &u64| needs[*name as usize - 1] == *need && !names.contains(name);
            let free: Vec<_> = (1..=needs.len() as u64).filter(is_free).collect();
            free.into_iter().map(move |name| [&names[..], &[name]].concat())
        });
        orders = longer.collect();
    }
    orders
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let permits = Permits::new(self.limit, 0).state().clone();
        let client = |id| {
            let settings = Settings {
                client: id,
                rule: Rule::Permits { limit: self.limit },
                ttl: TTL,
                renewal: 1,
                timeout: TIMEOUT,
                retry: 1,
                unavailable_after: 3,
                prefetch: self.prefetch,
                capacity: false,
            };
            settings.client()
        };
        let node = |id| Node {
            client: client(id),
            process: Process::Runs,
            exchange: None,
            until: None,
            listens: None,
            asks: self.asks,
            wait: None,
            permit: None,
        };
        let mut state = State {
            orders: Arc::new(orders(&self.needs)),
            // Beyond all that is long past.
            now: 100,
            faults: self.faults,
            clients: (1..=self.needs.len() as u64).map(node).collect(),
            store: Store {
                permits,
                clock: StoreClock {
                    reach: self
                        .jumps
                        .iter()
                        .map(|jump| (-jump).max(0).unsigned_abs())
                        .max()
                        .unwrap_or(0),
                    ..StoreClock::default()
                },
                token: 0,
                notified: BTreeSet::new(),
            },
            away: 0,
            late: Vec::new(),
        };
        for id in 0..state.clients.len() {
            state.drive(id);
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, node) in state.clients.iter().enumerate() {
            let runs = node.process == Process::Runs;
            if runs {
                if node.wait.is_none() && node.permit.is_none() && node.asks > 0 {
                    actions.push(Action::Ask(id));
                }
                if state.has_ended(id) {
                    actions.push(Action::Take(id));
                }
                if node.wait.is_some() {
                    actions.push(Action::Leave(id));
                }
                if node.permit.is_some() {
                    actions.push(Action::Release(id));
                }
                if state.is_notified(id) {
                    actions.push(Action::Notify(id));
                }
            }
            if let Some(exchange) = &node.exchange {
                if exchange.answer.is_none() && state.now < state.away {
                    if node.process != Process::Paused {
                        actions.push(Action::Refuse(id));
                    }
                } else if exchange.answer.is_none() {
                    actions.push(if runs && !exchange.is_slow {
                        Action::Exchange(id)
                    } else {
                        Action::CarryOut(id)
                    });
                } else if runs {
                    actions.push(Action::Answer(id));
                }
                if runs && exchange.sent + TIMEOUT <= state.now {
                    actions.push(Action::TimeOut(id));
                }
            }
            if node.process == Process::Paused {
                actions.push(Action::Resume(id));
            }
        }
        let is_there = state.now >= state.away;
        for late in (0..state.late.len()).filter(|_| is_there) {
            actions.push(Action::CarryOutLate(late));
        }
        let held = &state.store.permits.sessions;
        if is_there
            && held
                .values()
                .any(|held| held.expires <= state.store.clock.at(state.now))
        {
            actions.push(Action::Sweep);
        }
        if state.is_quiet() {
            actions.push(Action::Tick);
        }
        if state.faults == 0 {
            return;
        }
        for (id, node) in state.clients.iter().enumerate() {
            if let Some(exchange) = &node.exchange {
                if !exchange.is_slow {
                    actions.push(Action::Slow(id));
                }
                if node.process == Process::Runs {
                    actions.push(Action::Break(id));
                }
                if exchange.answer.is_none() && is_there {
                    actions.push(Action::Duplicate(id));
                    if node.process == Process::Runs {
                        actions.extend([Action::FailOver(id), Action::LoseAnswer(id)]);
                    }
                }
            }
            if state.is_notified(id) {
                actions.push(Action::LoseNotification(id));
            }
            if node.process != Process::Dead {
                actions.push(Action::Crash(id));
            }
            if node.process == Process::Runs {
                actions.push(Action::Pause(id));
            }
        }
        actions.extend(self.jumps.iter().copied().map(Action::Jump));
        actions.extend([Action::RestartEmpty, Action::Outage].into_iter().filter(|_| is_there));
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Tick => next.tick(),
            Action::Ask(id) => next.ask(id, self.needs[id]),
            Action::Take(id) => next.take(id),
            Action::Leave(id) => next.leave(id),
            Action::Release(id) => next.release(id),
            Action::Exchange(id) => {
                next.carry_out(self.limit, id);
                next.answer(id, None);
            }
            Action::CarryOut(id) => next.carry_out(self.limit, id),
            Action::Answer(id) => next.answer(id, None),
            Action::TimeOut(id) => {
                let after = Duration::from_micros(TIMEOUT);
                next.answer(id, Some(StoreError::TimedOut { after }));
            }
            Action::Refuse(id) => next.refuse(id),
            Action::Notify(id) => next.notify(id),
            Action::CarryOutLate(late) => {
                let sync = next.late.remove(late);
                next.store.carry_out(self.limit, next.now, &sync);
            }
            Action::Sweep => {
                let unknown = Session { client: 0, number: 1 };
                let mut sync = SyncRequest::first(unknown, Duration::ZERO);
                sync.begin = false;
                next.store.carry_out(self.limit, next.now, &sync);
            }
            Action::Resume(id) => {
                next.clients[id].process = Process::Runs;
                next.catch_up(id);
                next.drive(id);
            }
            fault => {
                next.faults -= 1;
                next.fail(self.limit, fault);
            }
        }
        next.tidy();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "never more than the limit with live leases",
                |world: &World, state: &State| {
                    state.live_units() <= world.limit || state.store.clock.is_fresh(state.now)
                },
            ),
            Property::always(
                "no permit is lost, no waiter stuck, no key left",
                |world: &World, state: &State| state.ends_well(world.limit).is_ok(),
            ),
        ]
    }
}

impl State {
    fn fail(&mut self, limit: u64, fault: Action) {
        match fault {
            Action::Slow(id) => {
                if let Some(exchange) = &mut self.clients[id].exchange {
                    exchange.is_slow = true;
                }
            }
            Action::Break(id) => {
                let why = "the connection broke".into();
                self.answer(id, Some(StoreError::Unreachable { why }));
            }
            Action::LoseAnswer(id) => {
                self.carry_out(limit, id);
                let why = "the connection broke".into();
                self.answer(id, Some(StoreError::Unreachable { why }));
            }
            Action::Duplicate(id) => {
                let sync = self.clients[id].exchange.as_ref().map(|exchange| exchange.sync.clone());
                self.late.extend(sync);
            }
            Action::LoseNotification(id) => {
                if let Some(session) = self.clients[id].listens {
                    self.store.notified.remove(&session);
                }
            }
            Action::Crash(id) => {
                let node = &mut self.clients[id];
                node.process = Process::Dead;
                node.exchange.take_if(|exchange| exchange.answer.is_some());
                (node.wait, node.permit) = (None, None);
            }
            Action::Pause(id) => self.clients[id].process = Process::Paused,
            Action::Outage => self.away = self.now + TTL + 1,
            Action::RestartEmpty => {
                self.store.permits = Permits::new(limit, 0).state().clone();
                self.store.freeze(limit, self.now);
            }
            Action::FailOver(id) => {
                let before = self.store.permits.clone();
                self.carry_out(limit, id);
                self.answer(id, None);
                self.store.permits = before;
                self.store.freeze(limit, self.now);
            }
            Action::Jump(ticks) => {
                self.store.clock.shift += ticks;
                if ticks > 0 {
                    self.store.clock.jumped = self.now;
                }
            }
            other => unreachable!("{other:?} is no fault"),
        }
    }
}

fn world(needs: &[(u64, bool)], asks: u8, faults: u8) -> World {
    World {
        needs: needs.to_vec(),
        limit: 2,
        asks,
        faults,
        jumps: &[],
        prefetch: None,
    }
}

/// Searches the whole space.
fn survives(name: &str, needs: &[(u64, bool)], asks: u8, faults: u8) {
    let world = world(needs, asks, faults);
    let limit = world.limit;
    exhaust(name, world, move |state: &State| state.ends_well(limit).err());
}

#[test]
fn states_that_are_taken_for_one_are_alike() {
    are_alike("permits, two clients, one fault", &world(&[(1, true), (2, true)], 1, 1));
    are_alike(
        "permits, three clients, no fault",
        &world(&[(1, true), (1, true), (2, true)], 1, 0),
    );
}

#[test]
#[ignore = "takes minutes"]
fn states_that_are_taken_for_one_are_alike_after_two_faults() {
    are_alike(
        "permits, two clients, two faults",
        &world(&[(1, true), (2, true)], 1, 2),
    );
    are_alike(
        "permits, three clients, one fault",
        &world(&[(1, true), (1, true), (2, true)], 1, 1),
    );
}

#[test]
fn three_clients_survive_a_fault() {
    survives(
        "permits, three clients, one fault",
        &[(1, true), (1, true), (2, true)],
        1,
        1,
    );
}

#[test]
fn two_clients_survive_two_faults() {
    survives("permits, two clients, two faults", &[(1, true), (2, true)], 1, 2);
}

#[test]
fn clients_survive_a_clock_that_is_set() {
    let jumps = &[TTL as i64 + 1, -2];
    let world = World {
        jumps,
        ..world(&[(1, true), (2, true)], 1, 1)
    };
    are_alike("permits, a clock that is set, one fault", &world);
    let limit = world.limit;
    exhaust(
        "permits, a clock that is set, one fault",
        world,
        move |state: &State| state.ends_well(limit).err(),
    );
}

#[test]
#[ignore = "takes minutes"]
fn clients_survive_a_clock_that_is_set_back_and_a_fault() {
    let world = World {
        jumps: &[-2],
        ..world(&[(1, true), (2, true)], 1, 2)
    };
    let limit = world.limit;
    exhaust(
        "permits, a clock that is set back, two faults",
        world,
        move |state: &State| state.ends_well(limit).err(),
    );
}

#[test]
#[ignore = "takes minutes"]
fn clients_that_ask_again_survive_a_fault() {
    survives("permits, two asks each, one fault", &[(1, true), (2, true)], 2, 1);
}

#[test]
#[ignore = "takes minutes"]
fn asks_that_do_not_wait_survive_two_faults() {
    survives("permits, one does not wait, two faults", &[(1, false), (2, true)], 1, 2);
}

#[test]
#[ignore = "takes minutes"]
fn three_clients_survive_two_faults() {
    survives(
        "permits, three clients, two faults",
        &[(1, true), (1, true), (2, true)],
        1,
        2,
    );
}
