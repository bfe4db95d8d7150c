//! A store in memory that fails as stores do: before it has done anything, in the middle, or when it was to answer. And clients
//! that say again what they do not know to have arrived.

use super::{Change, Line, Node, Ops, Queue, Shelf};
use crate::remote::backend::{Grant, Reply, Rule, Session, Step, StoreError, Wish};
use crate::remote::key::Key;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(super) const LIMIT: u64 = 6;
pub(super) const TTL: Duration = Duration::from_secs(10);

/// SplitMix64, of Steele, Lea and Flood.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Whether its watches tell of one's own changes as well is for the test to say.
pub(super) struct Fake<const TELLS: bool = false>(pub(super) Mutex<State>);

pub(super) type Store = Fake<false>;

pub(super) fn failing<const TELLS: bool>(state: State) -> Queue<Fake<TELLS>> {
    Queue::new(Fake(Mutex::new(state)))
}

/// One that fails when it is told to.
pub(super) fn store() -> Queue<Store> {
    failing(State::new(1, 0))
}

/// A term, and whether it is over.
#[derive(Default)]
pub(super) struct Life(pub(super) AtomicBool);

pub(super) struct State {
    random: Random,
    pub(super) terms: Vec<Arc<Life>>,
    /// What is to be the limit as soon as something has been deleted.
    pub(super) then_limit: Option<u64>,
    /// No session can be ended.
    pub(super) ends_fail: bool,
    /// Watches end as soon as they have begun.
    pub(super) watches_fail: bool,
    /// How many watches were begun, and how many of them have not ended.
    pub(super) watches: (u64, u64),
    /// What a watch tells first, and last.
    pub(super) tells: Option<Line>,
    /// One in so many calls fails.
    fails: u64,
    pub(super) limit: u64,
    pub(super) sessions: BTreeSet<Session>,
    pub(super) nodes: Vec<Node>,
    next: u64,
}

impl State {
    pub(super) fn new(seed: u64, fails: u64) -> Self {
        Self {
            random: Random(seed),
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

    pub(super) fn line(&self) -> Line {
        Line::new(self.limit, self.sessions.clone(), self.nodes.clone())
    }

    fn begin(&mut self, session: Session) {
        self.sessions.insert(session);
    }

    fn create(&mut self, session: Session, wish: u64, units: u64) {
        self.next += 1;
        let place = self.next;
        let name = format!("{session}/{wish}/{place}").into();
        assert!(
            !self
                .nodes
                .iter()
                .any(|node| (node.session, node.wish) == (session, wish)),
            "a wish is there twice"
        );
        self.nodes.push(Node {
            name,
            place,
            session,
            wish,
            units,
            token: place,
        });
    }

    /// The first so many changes.
    fn change(&mut self, session: Session, ops: &Ops, mut most: u64) {
        let mut goes_on = || {
            let goes_on = most > 0;
            most = most.saturating_sub(1);
            goes_on
        };
        if ops.begin && goes_on() {
            self.begin(session);
        }
        for &(wish, units) in &ops.create {
            if goes_on() {
                self.create(session, wish, units);
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

impl<const TELLS: bool> Shelf for Fake<TELLS> {
    type Term = Life;

    const TELLS: bool = TELLS;

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
    ) -> Result<Option<Line>, StoreError> {
        let mut state = self.0.lock();
        if state.fails() {
            let most = state.random.below(4);
            state.change(session, ops, most);
            return Err(failed());
        }
        state.change(session, ops, u64::MAX);
        Ok((look || !TELLS).then(|| state.line()))
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
        if let Some(line) = tells {
            tell(Change::All(line));
        }
        if !fails {
            std::future::pending::<()>().await;
        }
    }
}

/// A client, as the desk is one: everything that it does not know to have arrived it says again.
pub(super) struct Client {
    pub(super) step: Step,
    wishes: u64,
    /// Those that the store has not answered.
    pub(super) untold: Vec<Wish>,
    /// Those that wait in line.
    waiting: BTreeSet<u64>,
    pub(super) held: u64,
}

impl Client {
    pub(super) fn new(client: u64) -> Self {
        let step = Step {
            seq: 0,
            ..Step::first(Session { client, number: 1 }, TTL)
        };
        Self {
            step,
            wishes: 0,
            untold: Vec::new(),
            waiting: BTreeSet::new(),
            held: 0,
        }
    }

    pub(super) async fn say<const TELLS: bool>(&mut self, queue: &Queue<Fake<TELLS>>) -> Option<Reply> {
        self.step.seq += 1;
        self.step.wishes.clone_from(&self.untold);
        let key = Key::new("fake").expect("a name");
        let reply = queue
            .step(&key, &Rule::Permits { limit: LIMIT }, &self.step)
            .await
            .ok()?;
        assert!(reply.alive);
        self.step.begin = false;
        self.step.limit = None;
        for id in self.step.withdrawn.drain(..) {
            self.waiting.remove(&id);
        }
        for wish in self
            .untold
            .drain(..)
            .filter(|wish| wish.queue && wish.need <= reply.census.limit)
        {
            self.waiting.insert(wish.id);
        }
        for &Grant { wish, units, token } in &reply.grants {
            assert!(token > self.step.seen, "tokens grow");
            self.step.seen = token;
            self.waiting.remove(&wish);
            self.held += units;
        }
        Some(reply)
    }

    pub(super) fn wishes_for(&mut self, need: u64) {
        self.wishes += 1;
        let (id, want, queue) = (self.wishes, need, true);
        self.untold.push(Wish { id, need, want, queue });
    }

    pub(super) async fn ends<const TELLS: bool>(&mut self, queue: &Queue<Fake<TELLS>>) -> Result<Reply, StoreError> {
        self.step.seq += 1;
        self.step.end = true;
        let (key, rule) = (Key::new("fake").expect("a name"), Rule::Permits { limit: LIMIT });
        queue.step(&key, &rule, &self.step).await
    }

    /// Something that a client may do.
    fn act(&mut self, random: &mut Random) {
        match random.below(5) {
            0 | 1 => {
                self.wishes += 1;
                let need = 1 + random.below(LIMIT);
                let want = need + random.below(3);
                let (id, queue) = (self.wishes, random.below(3) > 0);
                self.untold.push(Wish { id, need, want, queue });
            }
            2 if self.held > 0 => {
                let units = 1 + random.below(self.held);
                self.held -= units;
                self.step.returned += units;
            }
            3 => {
                if let Some(&id) = self.waiting.first() {
                    self.step.withdrawn.push(id);
                }
            }
            _ => {}
        }
    }
}

/// Clients at one store, each of which fails one in `fails` of its calls; then all that was asked for is granted, and nothing is
/// left.
async fn play(seed: u64, fails: u64) {
    let mut random = Random(seed);
    let queue = failing::<false>(State::new(!seed, fails));
    let mut clients: Vec<_> = (1..=4).map(Client::new).collect();
    for _ in 0..300 {
        let client = &mut clients[random.below(4) as usize];
        client.act(&mut random);
        let reply = client.say(&queue).await;
        let held: u64 = clients.iter().map(|client| client.held).sum();
        assert!(held <= LIMIT, "seed {seed}: {held} of {LIMIT}");
        if let Some(reply) = reply {
            assert!(reply.census.in_use <= LIMIT, "seed {seed}: {reply:?}");
        }
    }
    queue.shelf().0.lock().fails = 0;
    // Everybody gives back whatever it gets: whoever waits is served, in a bounded number of rounds.
    for round in 0.. {
        let mut waiting = 0;
        for client in &mut clients {
            client.step.returned += std::mem::take(&mut client.held);
            client.say(&queue).await.expect("nothing fails any more");
            waiting += client.waiting.len() + client.untold.len();
        }
        if waiting == 0 {
            break;
        }
        assert!(round < 1_000, "seed {seed}: {waiting} wait for ever");
    }
    for client in &mut clients {
        client.step.returned += std::mem::take(&mut client.held);
        client.say(&queue).await.expect("nothing fails any more");
    }
    let wishes = queue.shelf().0.lock().nodes.len();
    assert_eq!(wishes, 0, "seed {seed}: nodes that nobody knows of");
    for client in &mut clients {
        client.ends(&queue).await.expect("nothing fails any more");
    }
    assert!(queue.shelf().0.lock().sessions.is_empty());
}

#[tokio::test(start_paused = true)]
async fn permits_are_never_over_admitted_nor_lost_whatever_fails() {
    for seed in 0..60 {
        play(seed, [0, 2, 5][seed as usize % 3]).await;
    }
}

/// A limiter that has gone without a word, while its client keeps up the term.
#[tokio::test(start_paused = true)]
async fn whoever_is_not_heard_of_is_taken_down_after_its_time_to_live() {
    let queue = store();
    let (mut gone, mut lives) = (Client::new(1), Client::new(2));
    for (client, need) in [(&mut gone, LIMIT), (&mut lives, 1)] {
        let (id, want, queue) = (1, need, true);
        client.untold.push(Wish { id, need, want, queue });
    }
    gone.say(&queue).await.unwrap();
    assert_eq!(gone.held, LIMIT);
    lives.say(&queue).await.unwrap();
    for _ in 0..3 {
        tokio::time::advance(TTL / 3 - Duration::from_millis(1)).await;
        lives.say(&queue).await.unwrap();
        assert_eq!(lives.held, 0, "not before its time");
    }
    queue.shelf().0.lock().fails = 1;
    tokio::time::sleep(Duration::from_secs(1)).await;
    queue.shelf().0.lock().fails = 0;
    // What could not be done is tried again.
    tokio::time::sleep(Duration::from_secs(1)).await;
    lives.say(&queue).await.unwrap();
    assert_eq!(lives.held, 1);
}
