//! A store in memory that fails as stores do: before it has done anything, half-way, or before the answer.

use crate::queue::{Change, Node, NodeQueue, NodeStore, Ops, Queue};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tollgate::remote::Key;
use tollgate::remote::{Session, StoreError};

pub(super) const LIMIT: u64 = 6;
pub(super) const TTL: Duration = Duration::from_secs(10);

/// A source of random numbers: splitmix64 (G. Steele, D. Lea and C. Flood, OOPSLA 2014).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn of_seed(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// `REPORTS`: its watches report the process's own changes as well.
pub(super) struct Fake<const REPORTS: bool = false>(pub(super) Mutex<State>);

pub(super) type Store = Fake<false>;

pub(super) fn failing<const REPORTS: bool>(state: State) -> Queue<Fake<REPORTS>> {
    Queue::new(Fake(Mutex::new(state)))
}

/// A store that fails on demand.
pub(super) fn store() -> Queue<Store> {
    failing(State::new(1, 0))
}

/// A term, and whether it is over.
#[derive(Default)]
pub(super) struct Life(pub(super) AtomicBool);

pub(super) struct State {
    random: Random,
    pub(super) terms: Vec<Arc<Life>>,
    /// The limit after the next deletion.
    pub(super) then_limit: Option<u64>,
    /// No session can be ended.
    pub(super) ends_fail: bool,
    /// Watches end as soon as they have begun.
    pub(super) watches_fail: bool,
    /// The watches begun, and those that have not ended.
    pub(super) watches: (u64, u64),
    /// The only report of a watch.
    pub(super) tells: Option<NodeQueue>,
    /// One in `fails` calls fails.
    pub(super) fails: u64,
    pub(super) limit: u64,
    pub(super) sessions: BTreeSet<Session>,
    pub(super) nodes: Vec<Node>,
    next: u64,
}

impl State {
    pub(super) fn new(seed: u64, fails: u64) -> Self {
        Self {
            random: Random::of_seed(seed),
            terms: Vec::new(),
            then_limit: None,
            ends_fail: false,
            watches_fail: false,
            watches: (0, 0),
            tells: None,
            fails,
            limit: LIMIT,
            sessions: BTreeSet::new(),
            nodes: Vec::new(),
            next: 0,
        }
    }

    pub(super) fn queue(&self) -> NodeQueue {
        NodeQueue::new(self.limit, self.sessions.clone(), self.nodes.clone())
    }

    fn begin(&mut self, session: Session) {
        self.sessions.insert(session);
    }

    fn create(&mut self, session: Session, request: u64, units: u64) {
        self.next += 1;
        let place = self.next;
        let name = format!("{session}/{request}/{place}").into();
        assert!(
            !self
                .nodes
                .iter()
                .any(|node| (node.session, node.request) == (session, request)),
            "a request is there twice"
        );
        self.nodes.push(Node {
            name,
            place,
            session,
            request,
            units,
            token: place,
        });
    }

    /// Carries out the first `most` changes.
    fn change(&mut self, session: Session, ops: &Ops, mut most: u64) {
        let mut goes_on = || {
            let goes_on = most > 0;
            most = most.saturating_sub(1);
            goes_on
        };
        if ops.begin && goes_on() {
            self.begin(session);
        }
        for &(request, units) in &ops.create {
            if goes_on() {
                self.create(session, request, units);
            }
        }
        for (name, units) in &ops.shrink {
            if let Some(node) = self.nodes.iter_mut().find(|node| node.name == *name)
                && goes_on()
            {
                assert!(node.units >= *units, "a node has grown");
                node.units = *units;
            }
        }
        for name in &ops.delete {
            if goes_on() {
                self.nodes.retain(|node| node.name != *name);
                self.limit = self.then_limit.take().unwrap_or(self.limit);
            }
        }
        if let Some(limit) = ops.limit.filter(|_| goes_on()) {
            self.limit = limit;
        }
    }

    fn fails(&mut self) -> bool {
        self.fails > 0 && self.random.below(self.fails) == 0
    }
}

fn failed() -> StoreError {
    let why = "as it was told".into();
    StoreError::Unreachable { why }
}

impl<const REPORTS: bool> NodeStore for Fake<REPORTS> {
    type Term = Life;

    const REPORTS: bool = REPORTS;

    async fn term(&self, _ttl: Duration) -> Result<Arc<Life>, StoreError> {
        let life = Arc::<Life>::default();
        self.0.lock().terms.push(Arc::clone(&life));
        Ok(life)
    }

    fn is_over(&self, life: &Life) -> bool {
        // Relaxed: nothing else is read by it.
        life.0.load(Ordering::Relaxed)
    }

    async fn carry_out(
        &self,
        _term: &Life,
        _key: &Key,
        _limit: u64,
        session: Session,
        ops: &Ops,
        look: bool,
    ) -> Result<Option<NodeQueue>, StoreError> {
        let mut state = self.0.lock();
        if state.fails() {
            let most = state.random.below(4);
            state.change(session, ops, most);
            return Err(failed());
        }
        state.change(session, ops, u64::MAX);
        Ok((look || !REPORTS).then(|| state.queue()))
    }

    async fn end(&self, _term: Option<&Life>, _ttl: Duration, _key: &Key, session: Session) -> Result<(), StoreError> {
        let mut state = self.0.lock();
        if state.ends_fail || state.fails() {
            return Err(failed());
        }
        state.sessions.remove(&session);
        state.nodes.retain(|node| node.session != session);
        Ok(())
    }

    async fn watch(&self, _term: &Life, _key: &Key, tell: impl Fn(Change) + Send + Sync) {
        struct Watching<'a>(&'a Mutex<State>);
        impl Drop for Watching<'_> {
            fn drop(&mut self) {
                self.0.lock().watches.1 -= 1;
            }
        }
        let (fails, tells) = {
            let mut state = self.0.lock();
            state.watches.0 += 1;
            state.watches.1 += 1;
            (state.watches_fail, state.tells.clone())
        };
        let _watching = Watching(&self.0);
        if let Some(queue) = tells {
            tell(Change::All(queue));
        }
        if !fails {
            std::future::pending::<()>().await;
        }
    }
}
