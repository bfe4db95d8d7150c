//! Processes whose permits are kept in keys of Consul, in slots or in a document.
//!
//! What a sync reads from the keys, what it writes, and which operations these are, is the library's code; and so are the keys, which
//! behave as Consul's do in the store's own tests. Modelled are the client, and what happens between the reads and writes of a sync.
//!
//! Faults: a write is carried out without an answer, or comes at any later time; Consul ends the session of a process that was paused for
//! longer than a lease; a process dies; the event of a watch is lost. A limit that is lowered, once, is none.

use super::keys::Keys;
use super::kv::Op;
use crate::search::exhaust;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use stateright::{Model, Property};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::time::Duration;
use tollgate::remote::{Request, Session, SyncReply, SyncRequest};

/// Writes have numbers from here on, and syncs from a multiple of this: all other numbers are smaller.
const FIRST: u64 = 10_000;

/// How permits are kept in the keys.
pub(super) trait Layout: Clone + Debug + Send + Sync + 'static {
    /// What a sync has read, and has written since.
    type View: Clone + Debug + Send + Sync;

    fn read(keys: &Keys, process: &Process<Self::View>) -> Self::View;

    /// The next step of a sync after it has read.
    fn next(view: &Self::View, process: &Process<Self::View>, sync: &SyncRequest, limit: u64) -> Next;

    /// Records that its next write was the write `index`. False when it has to read again.
    fn written(
        view: &mut Self::View,
        process: &Process<Self::View>,
        sync: &SyncRequest,
        limit: u64,
        index: u64,
    ) -> bool;

    /// Whether `ops` have changed what all watch.
    fn changed(before: &Keys, after: &Keys, ops: &[Op]) -> bool;

    /// The last write that the process hears of if it watches; `changed` is the last of those that change what all watch.
    fn latest(keys: &Keys, changed: u64, session: Session) -> u64;

    /// The limit in the keys.
    fn limit(keys: &Keys) -> Option<u64>;

    /// The units that live sessions have, of one session or of all.
    fn units(keys: &Keys, of: Option<(Session, &str)>) -> u64;

    /// The tokens of grants.
    fn tokens(keys: &Keys) -> BTreeSet<u64>;

    /// Whether the key may be left when all processes are gone; `cleans` says that one of them ended after all others.
    fn may_stay(key: &str, cleans: bool) -> bool;

    /// A value, without what has no effect any more.
    fn text(key: &str, value: &[u8]) -> String;

    /// Whether the parity of a process' number of writes matters; the number itself never does.
    const WRITES_COUNT: bool;
}

/// A step of a sync.
pub(super) enum Next {
    Write(Vec<Op>),
    Reply(Answer),
}

/// What a process hears at the end of a sync.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) reply: SyncReply,
    /// It watches, from this write on.
    pub(super) watches: Option<u64>,
    /// It looks again by itself.
    pub(super) looks: bool,
}

/// A space.
#[derive(Clone, Debug)]
pub(super) struct World<L> {
    /// By process, how many units it asks for, and how many times.
    needs: Vec<(u64, u8)>,
    limit: u64,
    /// What the second process lowers the limit to, once.
    lowered: Option<u64>,
    /// How many processes may end by themselves, the first ones.
    ends: usize,
    faults: u8,
    layout: PhantomData<L>,
}

#[derive(Clone, Debug)]
pub(super) struct State<L: Layout> {
    processes: Vec<Process<L::View>>,
    keys: Keys,
    /// The last write that changed what all watch.
    changed: u64,
    /// Writes that come late.
    late: Vec<Vec<Op>>,
    faults: u8,
    /// The limit was lowered.
    is_lowered: bool,
    /// Consul has ended a session, or a write has come late: a key may be left until the limiter is used again.
    leaves: bool,
    /// A write has granted more units than there are.
    exceeds: bool,
    /// The greatest token so far, and whether a later grant had a smaller one.
    token: u64,
    regresses: bool,
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
struct Exchange<V> {
    request: SyncRequest,
    /// What was read; nothing before it was read.
    view: Option<V>,
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
pub(super) struct Process<V> {
    pub(super) session: Session,
    /// Consul's name of the session.
    pub(super) id: String,
    life: Life,
    /// Consul has ended the session.
    pub(super) lapsed: bool,
    /// No sync of the session was answered.
    pub(super) begins: bool,
    seq: u64,
    sync: Option<Exchange<V>>,
    /// Another writer was quicker the last time.
    pub(super) overtaken: bool,
    asks: u8,
    wait: Option<Wait>,
    request: u64,
    held: u64,
    returned: u64,
    seen: u64,
    limit: Option<u64>,
    /// Something is to be told to the store.
    news: bool,
    /// It watches, since this write.
    pub(super) watches: Option<u64>,
    /// The last write before its last read.
    pub(super) saw: u64,
    /// It looks again by itself.
    looks: bool,
    pub(super) writes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
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
    Lower,
    // Faults.
    LoseAnswer(usize),
    Break(usize),
    Lapse(usize),
    Die(usize),
    LoseEvent(usize),
}

impl<V> Process<V> {
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
            saw: 0,
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
        self.sync = Some(Exchange { request, view: None });
    }

    /// What the client does with the answer.
    fn hear(&mut self, need: u64, sync: &SyncRequest, answer: Answer) {
        let Answer { reply, watches, looks } = answer;
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
        (self.watches, self.looks) = (watches, looks);
    }
}

impl<L: Layout> World<L> {
    /// The next write of a process.
    fn write(&self, process: &Process<L::View>) -> Option<Vec<Op>> {
        let Exchange { request, view } = process.sync.as_ref()?;
        match L::next(view.as_ref()?, process, request, self.limit) {
            Next::Write(ops) => Some(ops),
            Next::Reply(_) => None,
        }
    }

    /// Whether the end of the sync of this process is all that is left of it.
    fn is_lost(&self, process: &Process<L::View>) -> bool {
        let Some(Exchange {
            request,
            view: Some(view),
        }) = &process.sync
        else {
            return false;
        };
        match L::next(view, process, request, self.limit) {
            Next::Reply(answer) => !answer.reply.alive && !request.end,
            Next::Write(_) => false,
        }
    }
}

impl<L: Layout> State<L> {
    fn carry_out(&mut self, ops: &[Op]) -> Option<u64> {
        let before = self.keys.clone();
        let written = self.keys.change(ops)?;
        self.note(&before, ops);
        let (had, has) = (L::units(&before, None), L::units(&self.keys, None));
        self.exceeds |= has > had && has > L::limit(&self.keys).unwrap_or(0);
        let tokens = L::tokens(&self.keys);
        let new: Vec<_> = tokens.difference(&L::tokens(&before)).copied().collect();
        self.regresses |= new.iter().any(|&token| token <= self.token);
        self.token = new.into_iter().fold(self.token, u64::max);
        Some(written)
    }

    fn note(&mut self, before: &Keys, ops: &[Op]) {
        if L::changed(before, &self.keys, ops) {
            self.changed = self.keys.index;
        }
    }

    /// Consul ends the session of a process by itself.
    fn expire(&mut self, id: usize) {
        self.leaves = true;
        self.end(id);
    }

    /// The session of a process ends.
    fn end(&mut self, id: usize) {
        let before = self.keys.clone();
        self.processes[id].lapsed = true;
        self.keys.die(&self.processes[id].id);
        self.note(&before, &[]);
    }

    /// A read of the keys.
    fn read(&mut self, world: &World<L>, id: usize) {
        let view = L::read(&self.keys, &self.processes[id]);
        let process = &mut self.processes[id];
        process.saw = self.keys.index;
        if let Some(sync) = &mut process.sync {
            sync.view = Some(view);
        }
        if world.is_lost(process) {
            self.lose(id);
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
    fn write(&mut self, world: &World<L>, id: usize) {
        let process = self.processes[id].clone();
        let Some(Exchange {
            request,
            view: Some(mut view),
        }) = process.sync.clone()
        else {
            return;
        };
        match L::next(&view, &process, &request, world.limit) {
            Next::Write(ops) => {
                let written = self.carry_out(&ops);
                let goes_on =
                    written.is_some_and(|index| L::written(&mut view, &process, &request, world.limit, index));
                let process = &mut self.processes[id];
                process.writes += 1;
                process.overtaken |= written.is_none();
                let view = goes_on.then_some(view);
                process.sync = Some(Exchange { request, view });
            }
            Next::Reply(_) if request.end => {
                (self.processes[id].sync, self.processes[id].life) = (None, Life::Ended);
                self.end(id);
            }
            Next::Reply(answer) if !answer.reply.alive => self.lose(id),
            Next::Reply(answer) => {
                self.processes[id].sync = None;
                self.processes[id].hear(world.needs[id].0, &request, answer);
            }
        }
    }

    /// The last write that the process hears of.
    fn latest(&self, id: usize) -> u64 {
        L::latest(&self.keys, self.changed, self.processes[id].session)
    }

    fn may_start(&self, id: usize) -> bool {
        let process = &self.processes[id];
        let event = process.watches.is_some_and(|saw| saw < self.latest(id));
        process.is_there() && process.sync.is_none() && (process.news || event || process.life == Life::Ends)
    }

    /// A sync begins, and reads.
    fn start(&mut self, world: &World<L>, id: usize) {
        let latest = self.latest(id);
        let process = &mut self.processes[id];
        // The event is heard.
        process.watches = process.watches.map(|saw| saw.max(latest));
        process.start(world.needs[id].0);
        self.read(world, id);
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

    /// Whether each process has its units in the keys, as long as Consul has not ended its session.
    fn are_there(&self) -> bool {
        let mut live = self
            .processes
            .iter()
            .filter(|process| process.is_there() && !process.lapsed);
        live.all(|process| L::units(&self.keys, Some((process.session, &process.id))) >= process.held)
    }

    /// Lets all that is under way happen, without a fault, and all units come back.
    fn settle(&mut self, world: &World<L>) -> Result<(), String> {
        for _ in 0..100 {
            let mut is_quiet = true;
            for id in 0..self.processes.len() {
                let process = &self.processes[id];
                match &process.sync {
                    Some(Exchange { view: None, .. }) => self.read(world, id),
                    Some(_) => self.write(world, id),
                    None if self.may_start(id) => self.start(world, id),
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
    fn ends_well(&self, world: &World<L>) -> Result<(), String> {
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
        if L::units(&state.keys, None) > 0 {
            return Err(format!("units are lost: {state:?}"));
        }
        let mut cleans = false;
        for process in state.processes.iter_mut().filter(|process| process.life == Life::Runs) {
            (process.life, cleans) = (Life::Ends, true);
        }
        state.settle(world)?;
        let may_stay = |key: &str| state.leaves && L::may_stay(key, cleans);
        let left = state.keys.entries.keys().filter(|key| !may_stay(key));
        match left.count() {
            0 => Ok(()),
            _ => Err(format!("a key is left: {state:?}")),
        }
    }

    /// The state, of whose large numbers only the order is written.
    fn words(&self) -> String {
        let entry = |entry: &super::kv::Entry| {
            let value = L::text(&entry.key, &entry.value);
            format!("{}={value}@{}{:?};", entry.key, entry.index, entry.session)
        };
        let op = |op: &Op| {
            let kv = &serde_json::to_value(op).expect("it is JSON")["KV"];
            let value = kv["Value"]
                .as_str()
                .map(|value| BASE64.decode(value).expect("it was encoded"));
            let value = value.map(|value| L::text(kv["Key"].as_str().unwrap_or_default(), &value));
            format!("{}{}{value:?}{}{};", kv["Verb"], kv["Key"], kv["Index"], kv["Session"])
        };
        let mut text = format!(
            "{}{}{}{}{},{},{};",
            self.faults, self.is_lowered, self.leaves, self.exceeds, self.regresses, self.token, self.keys.index
        );
        for (id, process) in self.processes.iter().enumerate() {
            if !process.is_there() {
                text += &format!("{:?}{};", process.life, process.lapsed);
                continue;
            }
            let mut process = process.clone();
            // Of the writes only their parity matters, and of events whether there was one since.
            process.writes = if L::WRITES_COUNT { process.writes % 2 } else { 0 };
            let is_old = |since: u64| u64::from(since < self.latest(id));
            (process.watches, process.saw) = (process.watches.map(is_old), is_old(process.saw));
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

impl<L: Layout> Hash for State<L> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words().hash(state);
    }
}

impl<L: Layout> PartialEq for State<L> {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl<L: Layout> Model for World<L> {
    type State = State<L>;
    type Action = Action;

    fn init_states(&self) -> Vec<State<L>> {
        let process = |id: usize| Process::new(id as u64 + 1, 1, self.needs[id].1);
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
            is_lowered: false,
            token: 0,
            regresses: false,
        }]
    }

    fn actions(&self, state: &State<L>, actions: &mut Vec<Action>) {
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
                if self.write(process).is_some() {
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
        let may_lower = self.lowered.is_some() && !state.is_lowered;
        if may_lower && state.processes.get(1).is_some_and(|second| second.life == Life::Runs) {
            actions.push(Action::Lower);
        }
    }

    fn next_state(&self, state: &State<L>, action: Action) -> Option<State<L>> {
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
            Action::Start(id) => next.start(self, id),
            Action::Read(id) => next.read(self, id),
            Action::Write(id) => next.write(self, id),
            Action::CarryOutLate(late) => {
                let ops = next.late.remove(late);
                next.leaves |= next.carry_out(&ops).is_some();
            }
            Action::Expire(id) => next.expire(id),
            Action::Lower => {
                next.is_lowered = true;
                next.processes[1].limit = self.lowered;
                next.processes[1].news = true;
            }
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
                |world: &World<L>, state: &State<L>| state.live_units() <= world.limit && !state.exceeds,
            ),
            Property::always("later grants have greater tokens", |_: &World<L>, state: &State<L>| {
                !state.regresses
            }),
            Property::always("each permit is in the keys", |_: &World<L>, state: &State<L>| {
                state.are_there()
            }),
            Property::always(
                "no unit is lost, no waiter stuck, no key left",
                |world: &World<L>, state: &State<L>| state.ends_well(world).is_ok(),
            ),
        ]
    }
}

impl<L: Layout> State<L> {
    fn fail(&mut self, world: &World<L>, fault: Action) {
        match fault {
            Action::LoseAnswer(id) | Action::Break(id) => {
                let Some(ops) = world.write(&self.processes[id]) else {
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
                let ops = world.write(&self.processes[id]);
                self.late.extend(ops);
                let process = &mut self.processes[id];
                (process.life, process.sync, process.wait) = (Life::Dead, None, None);
            }
            Action::LoseEvent(id) => self.processes[id].watches = Some(self.latest(id)),
            other => unreachable!("{other:?} is no fault"),
        }
    }
}

/// Searches the whole space.
pub(super) fn survives<L: Layout>(name: &str, world: World<L>) {
    let again = world.clone();
    exhaust(name, world, move |state: &State<L>| state.ends_well(&again).err());
}

impl<L> World<L> {
    /// A limit of two. The pairs of `needs` are the units that a process asks for, and how many times it does.
    pub(super) fn new(needs: &[(u64, u8)], lowered: Option<u64>, ends: usize, faults: u8) -> Self {
        Self {
            needs: needs.to_vec(),
            limit: 2,
            lowered,
            ends,
            faults,
            layout: PhantomData,
        }
    }
}
