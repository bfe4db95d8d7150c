//! Permits in the slots of Consul.
//!
//! What a sync reads from the keys, what it writes, and which operations these are, is the library's code; and so are the keys, which
//! behave as Consul's do in the store's own tests. Modelled are the client, and what happens between the reads and writes of a sync.
//!
//! Faults: a write is carried out without an answer, or comes at any later time; Consul ends the session of a process that was paused for
//! longer than a lease; a process dies; the limit is lowered; the event of a watch is lost.

#[path = "../../../../tollgate-stores/src/consul/slots/changes.rs"]
mod changes;
#[path = "../../../../tollgate-stores/src/consul/slots/view.rs"]
mod view;

use super::keys::Keys;
use super::kv::Op;
use crate::search::exhaust;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use changes::{Place, ops, ops_of_leaving};
use stateright::{Model, Property};
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::time::Duration;
use tollgate::remote::{Request, Session, SyncRequest};
use view::{Change, View};

/// As many as the library allows.
const MOST: u64 = 60;
/// Sessions with fewer others than this before them look again by themselves.
const LOOKOUTS: usize = 3;

/// Writes have numbers from here on, and syncs from a multiple of this: all other numbers are smaller.
const FIRST: u64 = 10_000;

/// A space.
#[derive(Clone, Debug)]
struct World {
    /// The number of the first client. It decides at which slot a session begins to take.
    first: u64,
    /// By process, how many units it asks for, and how many times.
    needs: Vec<(u64, u8)>,
    limit: u64,
    /// What the second process lowers the limit to, which is a fault.
    lowered: Option<u64>,
    /// How many processes may end by themselves, the first ones.
    ends: usize,
    faults: u8,
}

#[derive(Clone, Debug)]
struct State {
    processes: Vec<Process>,
    keys: Keys,
    /// The last write to slots or the limit.
    changed: u64,
    /// Writes that come late.
    late: Vec<Vec<Op>>,
    faults: u8,
    /// Consul has ended a session, or a write has come late: the limit may be left until the limiter is used again.
    leaves: bool,
    /// A write has taken more slots than there are.
    exceeds: bool,
}

/// A request of which the client has not heard the outcome.
#[derive(Clone, Copy, Debug)]
struct Wait {
    request: u64,
    sent: bool,
    /// The client has given up.
    withdrawn: bool,
}

/// A sync under way.
#[derive(Clone, Debug)]
struct Sync {
    request: SyncRequest,
    /// What was read, and the last write before that; nothing before it was read.
    view: Option<(View, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Runs,
    /// It returns all it has, and ends its session.
    Ends,
    Ended,
    Dead,
}

#[derive(Clone, Debug)]
struct Process {
    session: Session,
    /// Consul's name of the session.
    id: String,
    life: Life,
    /// Consul has ended the session.
    lapsed: bool,
    /// No sync of the session was answered.
    begins: bool,
    seq: u64,
    sync: Option<Sync>,
    overtaken: bool,
    asks: u8,
    wait: Option<Wait>,
    request: u64,
    held: u64,
    returned: u64,
    seen: u64,
    limit: Option<u64>,
    /// Something is to be told to the store.
    news: bool,
    /// It watches the slots, since this write.
    watches: Option<u64>,
    /// It looks again by itself.
    looks: bool,
    writes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Ask(usize),
    Leave(usize),
    Return(usize),
    End(usize),
    Start(usize),
    Read(usize),
    Write(usize),
    CarryOutLate(usize),
    /// Consul finds that a process is dead.
    Expire(usize),
    // Faults.
    LoseAnswer(usize),
    Break(usize),
    Lapse(usize),
    Die(usize),
    Lower,
    LoseEvent(usize),
}

impl Process {
    fn new(client: u64, number: u64, asks: u8) -> Self {
        let session = Session { client, number };
        Self {
            session,
            id: format!("s{client}.{number}"),
            life: Life::Runs,
            lapsed: false,
            begins: true,
            seq: client * 10 * FIRST,
            sync: None,
            overtaken: false,
            asks,
            wait: None,
            request: 0,
            held: 0,
            returned: 0,
            seen: 0,
            limit: None,
            news: false,
            watches: None,
            looks: false,
            writes: 0,
        }
    }

    fn is_there(&self) -> bool {
        matches!(self.life, Life::Runs | Life::Ends)
    }

    fn ask(&mut self) {
        self.request += 1;
        self.wait = Some(Wait {
            request: self.request,
            sent: false,
            withdrawn: false,
        });
        self.news = true;
    }

    /// The client's next sync.
    fn start(&mut self, need: u64) {
        self.seq += 1;
        let mut request = SyncRequest::first(self.session, Duration::from_secs(1));
        request.begin = self.begins;
        request.seq = self.seq;
        request.returned = self.returned;
        request.seen = self.seen;
        request.limit = self.limit;
        request.end = self.life == Life::Ends;
        if let Some(wait) = &mut self.wait {
            wait.sent = true;
            if wait.withdrawn {
                request.withdrawn.push(wait.request);
            } else {
                let (id, queue) = (wait.request, true);
                let want = need;
                request.requests.push(Request { id, need, want, queue });
            }
        }
        self.news = false;
        self.looks = false;
        self.sync = Some(Sync { request, view: None });
    }

    /// What the client does with the answer.
    fn hear(&mut self, need: u64, limit: u64, sync: &SyncRequest, view: &View, read: u64) {
        let reply = view.reply(sync, limit, Some(&self.id));
        for grant in &reply.grants {
            self.seen = self.seen.max(grant.token);
            match self.wait.take_if(|wait| wait.request == grant.request) {
                Some(wait) if !wait.withdrawn => self.held += grant.units,
                _ => {
                    self.returned += grant.units;
                    self.news = true;
                }
            }
        }
        self.begins = false;
        self.overtaken = false;
        if self.limit == sync.limit {
            self.limit = None;
        }
        let told = &sync.withdrawn;
        self.wait
            .take_if(|wait| told.contains(&wait.request) || need > reply.usage.limit);
        let place = view.place();
        self.watches = place.map(|_| read);
        self.looks = place.is_some_and(|ahead| ahead < LOOKOUTS);
    }

    /// Its next write: its operations, and the change that they make, unless they end the session. `None` if nothing is left.
    fn write(&self, limit: u64) -> Option<(Vec<Op>, Option<Change>)> {
        let Sync { request, view } = self.sync.as_ref()?;
        let (view, place) = (&view.as_ref()?.0, Place(String::new()));
        if request.end {
            let leaving = view.leaving(&self.id)?;
            return Some((ops_of_leaving(&place, &leaving, self.session, &self.id), None));
        }
        let mut change = view.next(request, limit, &self.id, self.overtaken)?;
        // Two in a row differ, and those of two sessions.
        let nonce = || format!("{}.{}", self.id, self.writes % 2);
        change.life.nonce = nonce();
        let ops = ops(&place, &change, self.session, &self.id, nonce());
        Some((ops.expect("numbers are JSON"), Some(change)))
    }
}

impl State {
    fn carry_out(&mut self, ops: &[Op]) -> Option<u64> {
        let slots = |keys: &Keys| -> Vec<_> {
            let entries = keys.entries.iter().filter(|(key, _)| key.starts_with("at/"));
            entries.map(|(key, entry)| (key.clone(), entry.index)).collect()
        };
        let (before, taken) = (slots(&self.keys), self.keys.taken().len() as u64);
        let written = self.keys.change(ops)?;
        let rings = ops.iter().any(|op| format!("{op:?}").contains("at/bell"));
        if before != slots(&self.keys) || rings {
            self.changed = written;
        }
        let now = self.keys.taken().len() as u64;
        self.exceeds |= now > taken && now > self.limit().unwrap_or(0);
        Some(written)
    }

    fn limit(&self) -> Option<u64> {
        let entry = self.keys.entries.get("at/limit")?;
        let value: serde_json::Value = serde_json::from_slice(&entry.value).expect("it is ours");
        value["limit"].as_u64()
    }

    /// Consul ends the session of a process by itself.
    fn expire(&mut self, id: usize) {
        self.leaves = true;
        self.end(id);
    }

    /// The session of a process ends.
    fn end(&mut self, id: usize) {
        let process = &mut self.processes[id];
        process.lapsed = true;
        let session = process.id.clone();
        let holds = self.keys.entries.values();
        let holds = holds.filter(|entry| entry.session.as_ref() == Some(&session));
        let rings = holds.into_iter().any(|entry| entry.key.starts_with("at/"));
        self.keys.die(&session);
        if rings {
            self.changed = self.keys.index;
        }
    }

    /// A read of the keys, as `ConsulSlots::attempt` begins.
    fn read(&mut self, id: usize) {
        let process = &self.processes[id];
        let ours = Some(&*process.id).filter(|_| !process.lapsed);
        let name = process.session.to_string();
        let view = View::of(&self.keys.list(), self.keys.index, "", &name, ours).expect("it is ours");
        let there = ours.is_some() && (view.is_there() || process.begins);
        let process = &mut self.processes[id];
        match &mut process.sync {
            Some(sync) if there || sync.request.end => sync.view = Some((view, self.keys.index)),
            _ => self.lose(id),
        }
    }

    /// The session is gone: its process begins another, and waits there.
    fn lose(&mut self, id: usize) {
        let old = self.processes[id].clone();
        if !old.lapsed {
            self.end(id);
        }
        let Session { client, number } = old.session;
        let mut new = Process::new(client, number + 1, old.asks);
        new.limit = old.limit;
        new.life = old.life;
        if old.wait.is_some_and(|wait| !wait.withdrawn) {
            new.ask();
        }
        self.processes[id] = new;
    }

    /// A write of a sync, or its end.
    fn write(&mut self, world: &World, id: usize) {
        let need = world.needs[id].0;
        let Some((ops, change)) = self.processes[id].write(world.limit) else {
            let Some(Sync {
                request,
                view: Some((view, read)),
            }) = self.processes[id].sync.take()
            else {
                return;
            };
            match request.end {
                true => {
                    self.processes[id].life = Life::Ended;
                    self.end(id);
                }
                false => self.processes[id].hear(need, world.limit, &request, &view, read),
            }
            return;
        };
        let written = self.carry_out(&ops);
        let process = &mut self.processes[id];
        process.writes += 1;
        let Some(sync) = &mut process.sync else { return };
        match (written, change, &mut sync.view) {
            (Some(_), Some(change), view) if change.lowers => *view = None,
            (Some(written), Some(change), Some((view, _))) => view.apply(change, &process.id, written),
            (Some(_), None, Some((view, _))) => view.leave(&process.id),
            (_, _, view) => {
                *view = None;
                process.overtaken = true;
            }
        }
    }

    fn may_start(&self, id: usize) -> bool {
        let process = &self.processes[id];
        let event = process.watches.is_some_and(|saw| saw < self.changed);
        process.is_there() && process.sync.is_none() && (process.news || event || process.life == Life::Ends)
    }

    fn give_back(&mut self, id: usize) {
        let process = &mut self.processes[id];
        process.returned += std::mem::take(&mut process.held);
        process.news = true;
    }

    fn live_units(&self) -> u64 {
        let live = self
            .processes
            .iter()
            .filter(|process| process.life != Life::Dead && !process.lapsed);
        live.map(|process| process.held).sum()
    }

    /// Whether each process has the slots of its permits, as long as Consul has not ended its session.
    fn are_there(&self) -> bool {
        let taken = self.keys.taken();
        let live = self
            .processes
            .iter()
            .filter(|process| process.is_there() && !process.lapsed);
        live.into_iter().all(|process| {
            let ours = taken.iter().filter(|entry| entry.session.as_ref() == Some(&process.id));
            ours.count() as u64 >= process.held
        })
    }

    /// Lets all that is under way happen, without a fault, and all units come back.
    fn settle(&mut self, world: &World) -> Result<(), String> {
        for _ in 0..100 {
            let mut is_quiet = true;
            for id in 0..self.processes.len() {
                let process = &self.processes[id];
                match &process.sync {
                    Some(Sync { view: None, .. }) => self.read(id),
                    Some(_) => self.write(world, id),
                    None if self.may_start(id) => self.processes[id].start(world.needs[id].0),
                    None if process.held > 0 && process.is_there() => self.give_back(id),
                    None => continue,
                }
                is_quiet = false;
            }
            if is_quiet {
                return Ok(());
            }
        }
        Err(format!("it never settles: {self:?}"))
    }

    /// What is wrong at the end when no further fault happens, and all that is held comes back.
    ///
    /// Found out where nothing is under way: from elsewhere the end leads through such a state.
    fn ends_well(&self, world: &World) -> Result<(), String> {
        let is_busy = |id: usize| self.processes[id].sync.is_some() || self.may_start(id);
        if (0..self.processes.len()).any(is_busy) {
            return Ok(());
        }
        let mut state = self.clone();
        state.late.clear();
        for id in 0..state.processes.len() {
            if state.processes[id].life == Life::Dead && !state.processes[id].lapsed {
                state.expire(id);
            }
        }
        state.settle(world)?;
        // The first of those that wait look again.
        for process in state.processes.iter_mut().filter(|process| process.looks) {
            process.news = true;
        }
        state.settle(world)?;
        if state
            .processes
            .iter()
            .any(|process| process.is_there() && process.wait.is_some())
        {
            return Err(format!("a waiter is stuck: {state:?}"));
        }
        if !state.keys.taken().is_empty() {
            return Err(format!("units are lost: {state:?}"));
        }
        for process in state.processes.iter_mut().filter(|process| process.life == Life::Runs) {
            process.life = Life::Ends;
        }
        state.settle(world)?;
        let may_stay = |key: &str| key == "at/limit" && state.leaves;
        let left = state.keys.entries.keys().filter(|key| !may_stay(key));
        match left.count() {
            0 => Ok(()),
            _ => Err(format!("a key is left: {state:?}")),
        }
    }

    /// The state, of whose large numbers only the order is written.
    fn words(&self) -> String {
        let entry = |entry: &super::kv::Entry| {
            let value = String::from_utf8_lossy(&entry.value);
            format!("{}={value}@{}{:?};", entry.key, entry.index, entry.session)
        };
        let op = |op: &Op| {
            let kv = &serde_json::to_value(op).expect("it is JSON")["KV"];
            let value = kv["Value"]
                .as_str()
                .map(|value| BASE64.decode(value).expect("it was encoded"));
            let value = value.map(|value| String::from_utf8_lossy(&value).into_owned());
            format!("{}{}{value:?}{}{};", kv["Verb"], kv["Key"], kv["Index"], kv["Session"])
        };
        let mut text = format!("{}{}{};", self.faults, self.leaves, self.exceeds);
        for process in &self.processes {
            if !process.is_there() {
                text += &format!("{:?}{};", process.life, process.lapsed);
                continue;
            }
            let mut process = process.clone();
            // Of the writes only their parity matters, and of events whether there was one since.
            process.writes %= 2;
            let has_changed = |since: &mut u64| *since = u64::from(*since < self.changed);
            process.watches.iter_mut().for_each(has_changed);
            let views = process.sync.iter_mut().filter_map(|sync| sync.view.as_mut());
            views.for_each(|(_, read)| has_changed(read));
            text += &format!("{process:?}");
        }
        text.extend(self.keys.entries.values().map(entry));
        text.extend(self.late.iter().flatten().map(op));
        text += &format!("{}", self.late.len());
        let numbers = || text.split(|letter: char| !letter.is_ascii_digit());
        let is_large = |number: &u64| (FIRST..u64::MAX).contains(number);
        let large: BTreeSet<u64> = numbers()
            .filter_map(|digits| digits.parse().ok())
            .filter(is_large)
            .collect();
        let large: Vec<_> = large.into_iter().collect();
        let mut words = String::with_capacity(text.len());
        let mut rest = &*text;
        while let Some(at) = rest.find(|letter: char| letter.is_ascii_digit()) {
            words += &rest[..at];
            rest = &rest[at..];
            let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
            match rest[..digits]
                .parse()
                .ok()
                .and_then(|number| large.binary_search(&number).ok())
            {
                Some(place) => words += &format!("#{place}"),
                None => words += &rest[..digits],
            }
            rest = &rest[digits..];
        }
        words + rest
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words().hash(state);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let process = |id: usize| Process::new(self.first + id as u64, 1, self.needs[id].1);
        let mut keys = Keys::default();
        keys.index = FIRST;
        vec![State {
            processes: (0..self.needs.len()).map(process).collect(),
            keys,
            changed: FIRST,
            late: Vec::new(),
            faults: self.faults,
            leaves: false,
            exceeds: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (id, process) in state.processes.iter().enumerate() {
            if process.life == Life::Dead && !process.lapsed {
                actions.push(Action::Expire(id));
            }
            if !process.is_there() {
                continue;
            }
            let (has, waits) = (process.held > 0, process.wait.is_some_and(|wait| !wait.withdrawn));
            if process.life == Life::Runs {
                if process.asks > 0 && process.wait.is_none() {
                    actions.push(Action::Ask(id));
                }
                if waits {
                    actions.push(Action::Leave(id));
                }
                if has {
                    actions.push(Action::Return(id));
                }
                if process.sync.is_none() && !process.begins && id < self.ends {
                    actions.push(Action::End(id));
                }
            }
            if state.may_start(id) {
                actions.push(Action::Start(id));
            }
            if let Some(sync) = &process.sync {
                actions.push(if sync.view.is_some() {
                    Action::Write(id)
                } else {
                    Action::Read(id)
                });
            }
            if state.faults > 0 {
                if process.write(self.limit).is_some() {
                    actions.extend([Action::LoseAnswer(id), Action::Break(id)]);
                }
                if !process.lapsed && !process.begins {
                    actions.push(Action::Lapse(id));
                }
                if !process.begins || process.sync.is_some() {
                    actions.push(Action::Die(id));
                }
                if state.may_start(id) && !process.news && process.life == Life::Runs {
                    actions.push(Action::LoseEvent(id));
                }
            }
        }
        actions.extend((0..state.late.len()).map(Action::CarryOutLate));
        let second = state
            .processes
            .get(1)
            .filter(|_| state.faults > 0 && self.lowered.is_some());
        if second.is_some_and(|second| second.life == Life::Runs && second.limit.is_none()) {
            actions.push(Action::Lower);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Ask(id) => {
                next.processes[id].asks -= 1;
                next.processes[id].ask();
            }
            Action::Leave(id) => {
                let process = &mut next.processes[id];
                // One that was not sent is forgotten.
                process.wait.take_if(|wait| !wait.sent);
                if let Some(wait) = &mut process.wait {
                    wait.withdrawn = true;
                }
                process.news = true;
            }
            Action::Return(id) => next.give_back(id),
            Action::End(id) => {
                let process = &mut next.processes[id];
                (process.life, process.held, process.wait) = (Life::Ends, 0, None);
            }
            Action::Start(id) => {
                next.processes[id].start(self.needs[id].0);
                next.read(id);
            }
            Action::Read(id) => next.read(id),
            Action::Write(id) => next.write(self, id),
            Action::CarryOutLate(late) => {
                let ops = next.late.remove(late);
                next.leaves |= next.carry_out(&ops).is_some();
            }
            Action::Expire(id) => next.expire(id),
            fault => {
                next.faults -= 1;
                next.fail(self, fault);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "never more than the limit with live leases",
                |world: &World, state: &State| state.live_units() <= world.limit && !state.exceeds,
            ),
            Property::always("each permit has its slot", |_: &World, state: &State| state.are_there()),
            Property::always(
                "no unit is lost, no waiter stuck, no key left",
                |world: &World, state: &State| state.ends_well(world).is_ok(),
            ),
        ]
    }
}

impl State {
    fn fail(&mut self, world: &World, fault: Action) {
        match fault {
            Action::LoseAnswer(id) | Action::Break(id) => {
                let Some((ops, _)) = self.processes[id].write(world.limit) else {
                    return;
                };
                if fault == Action::LoseAnswer(id) {
                    self.carry_out(&ops);
                } else {
                    self.late.push(ops);
                }
                let process = &mut self.processes[id];
                process.writes += 1;
                process.sync = None;
                process.news = true;
            }
            Action::Lapse(id) => self.expire(id),
            Action::Die(id) => {
                let ops = self.processes[id].write(world.limit);
                self.late.extend(ops.map(|(ops, _)| ops));
                let process = &mut self.processes[id];
                (process.life, process.sync, process.wait) = (Life::Dead, None, None);
            }
            Action::Lower => {
                self.processes[1].limit = world.lowered;
                self.processes[1].news = true;
            }
            Action::LoseEvent(id) => self.processes[id].watches = Some(self.changed),
            other => unreachable!("{other:?} is no fault"),
        }
    }
}

fn survives(name: &str, needs: &[(u64, u8)], lowered: Option<u64>, ends: usize, faults: u8) {
    survives_from(1, name, needs, lowered, ends, faults);
}

fn survives_from(first: u64, name: &str, needs: &[(u64, u8)], lowered: Option<u64>, ends: usize, faults: u8) {
    let world = World {
        first,
        needs: needs.to_vec(),
        limit: 2,
        lowered,
        ends,
        faults,
    };
    let again = world.clone();
    exhaust(name, world, move |state: &State| state.ends_well(&again).err());
}

#[test]
fn two_sessions_of_slots_survive_a_fault() {
    survives("slots, two sessions, one fault", &[(1, 1), (2, 1)], None, 0, 1);
}

#[test]
fn sessions_of_slots_that_end_at_once_leave_nothing() {
    survives("slots, two sessions that end, no fault", &[(1, 1), (2, 1)], None, 2, 0);
}

#[test]
fn an_end_beside_a_session_of_slots_survives_a_fault() {
    survives(
        "slots, two sessions, one of which ends, one fault",
        &[(2, 1), (2, 1)],
        None,
        1,
        1,
    );
}

#[test]
fn a_lowered_limit_beside_slots_that_are_taken_survives() {
    survives("slots, a limit that is lowered", &[(1, 1), (1, 1)], Some(1), 0, 1);
}

/// The first session begins at the slot above the lowered limit.
#[test]
fn a_lowered_limit_counts_a_slot_above_it_that_is_taken_meanwhile() {
    survives_from(
        2,
        "slots, a limit that is lowered below a slot",
        &[(1, 1), (1, 1)],
        Some(1),
        0,
        1,
    );
}

#[test]
fn a_session_of_slots_that_holds_one_and_asks_for_another_takes_no_slot_twice() {
    survives(
        "slots, two sessions, one of which asks twice, no fault",
        &[(1, 2), (1, 1)],
        None,
        0,
        0,
    );
}

#[test]
fn a_session_of_slots_that_asks_twice_survives_a_fault() {
    survives("slots, one session that asks twice, one fault", &[(1, 2)], None, 0, 1);
}

#[test]
#[ignore = "takes minutes"]
fn sessions_of_slots_that_hold_and_ask_again_survive_a_fault() {
    survives(
        "slots, two sessions, one of which asks twice, one fault",
        &[(1, 2), (1, 1)],
        None,
        0,
        1,
    );
}

#[test]
#[ignore = "takes minutes"]
fn sessions_of_slots_that_end_survive_a_fault() {
    survives("slots, two sessions that end, one fault", &[(1, 1), (2, 1)], None, 2, 1);
}

#[test]
#[ignore = "takes minutes"]
fn two_sessions_of_slots_survive_two_faults() {
    survives("slots, two sessions, two faults", &[(1, 1), (2, 1)], None, 0, 2);
}
