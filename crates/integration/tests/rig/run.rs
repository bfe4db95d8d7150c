//! The run: six processes of eight tasks at one semaphore, each behind a proxy of its own, and everything that can go wrong, at
//! fixed seconds. Beside it each process has a rate, a window and tenants, as far as the store has them.

use super::checker::{Allowed, Bars, Of, Report, check, check_in_use, check_permits, check_spent};
use super::contender::{Gate, Held, Plan, Semaphore, Wish};
use super::history::{Ask, Event, Writer, read};
use super::instant::{Nanos, nanos, now, until};
use super::process::Process;
use super::proxy::{Mode, Proxy};
use super::server::{Server, Store};
use super::spender::{LENGTH, Meter, Tap};
use super::tenants::{BUSY, KEYS, LEGS, PERMITS, REMEMBERED, TenantGate, Tenants};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::time::sleep;

/// The longest life of a session without a renewal, at any store.
pub(crate) const LIFE: Duration = Duration::from_secs(3);
const PROCESSES: u32 = 6;
/// The run's own number, in the histories.
const DIRECTOR: u32 = PROCESSES;
const TASKS: u64 = 8;
const LIMIT: u64 = 8;
pub(crate) const HEAVIEST: u64 = 3;
const NAME: &str = "rig";

// The beginnings, in seconds of the run. Faults that outlast a session last four seconds.
const SCRIPTS_FORGOTTEN: u64 = 4;
const SHRUNK: u64 = 5;
const GROWN: u64 = 7;
const AS_BEFORE: u64 = 8;
const SLOW: u64 = 9;
const TOO_SLOW: u64 = 12;
const SWALLOWED: u64 = 21;
const CUT: u64 = 26;
const REPLIES_LOST: u64 = 27;
const CLIENT_STOPPED: u64 = 33;
const SERVER_STOPPED: u64 = 38;
const SERVER_RESTARTED: u64 = 45;
const KILLED: u64 = 52;
const END: u64 = 58;
/// How long before they are struck processes keep their permits.
const KEPT: u64 = 1;
/// The length of faults that outlast a session.
const LONG: u64 = 4;

/// A run that is being played.
struct Run<S> {
    ttl: Duration,
    /// A delay with which a sync still comes in time.
    slow: Duration,
    server: Server<S>,
    proxies: Vec<Proxy>,
    processes: Vec<Option<Process>>,
    writer: Arc<Writer>,
    folder: PathBuf,
    begin: Nanos,
    limit: u64,
    /// The semaphore, and the tenant whose permits bind: departed processes hold some of each.
    tried: Vec<u32>,
    /// How long the store may keep a key after the last call.
    deletes_within: Duration,
}

/// Plays the run with a server of `store` and processes of the test `entry`, which are contenders, and returns the report.
/// `connect` makes a semaphore at an address, of this name and limit, with this life of a session; the histories are written to
/// `folder`.
pub(crate) async fn run<S: Store, G: Semaphore>(
    store: S,
    entry: &str,
    folder: &Path,
    connect: impl AsyncFn(SocketAddr, &str, u64, Duration) -> G,
) -> io::Result<Report> {
    // One run at a time: each of them keeps the machine busy.
    static RUNS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _only = RUNS.lock().await;
    let ttl = LIFE / store.lives();
    let life = LIFE + store.late();
    let slow = ttl / 20 / store.trips();
    let forgets = store.forgets();
    let deletes_within = store.deletes_within(REMEMBERED);
    let server = Server::start(store).await?;
    let writer = Arc::new(Writer::create(&folder.join("director"))?);
    let (stop, stopped) = mpsc::channel();
    let watching = Arc::clone(&writer).watch_stalls(DIRECTOR, stopped);
    let begun = now();
    let gate = connect(server.address(), NAME, LIMIT, ttl).await;
    let tenants = gate.tenants();
    let (sent, done) = (0, begun);
    for (key, limit) in [(0, LIMIT)].into_iter().chain(KEYS.map(|key| (key, PERMITS))) {
        writer.write(&Event::Limit { key, limit, sent, done });
    }
    let tried = if tenants.is_some() { vec![0, BUSY] } else { vec![0] };
    let keys: Vec<u32> = KEYS.filter(|_| tenants.is_some()).collect();
    let mut proxies = Vec::new();
    for _ in 0..PROCESSES {
        proxies.push(Proxy::before(server.address()).await?);
    }
    let mut run = Run {
        ttl,
        slow,
        server,
        proxies,
        processes: Vec::new(),
        writer,
        folder: folder.into(),
        // The processes take a while to start.
        begin: now() + nanos(Duration::from_secs(1)),
        limit: LIMIT,
        tried,
        deletes_within,
    };
    run.start(entry)?;
    run.strike(&gate).await?;
    let meters = run.end(&gate, tenants).await?;
    drop(stop);
    watching.join().expect("it ends");

    let mut events = read(&folder.join("director")).map_err(io::Error::other)?;
    for process in 0..PROCESSES {
        events.extend(read(&run.history(process)).map_err(io::Error::other)?);
    }
    let bars = Bars {
        ttl: nanos(ttl),
        life: nanos(life),
        heaviest: HEAVIEST,
    };
    let mut report = check(&events, bars);
    // A dead waiter blocks the queue of a window for a life; and then it may be full.
    let dry = nanos(life + life / 10 + LENGTH);
    check_spent(&events, &meters, Allowed { dry, forgets }, &mut report);
    check_in_use(&events, &mut report);
    for key in keys {
        let permits_bind = key == BUSY;
        let mut tenant = check_permits(&events, Of::Tenant { key, permits_bind }, bars);
        report.faults.append(&mut tenant.faults);
        report.tenants.push(tenant);
    }
    Ok(report)
}

/// The instant of this second of a run with this beginning.
fn second(begin: Nanos, at: u64) -> Nanos {
    begin + nanos(Duration::from_secs(at))
}

impl<S: Store> Run<S> {
    fn history(&self, process: u32) -> PathBuf {
        self.folder.join(format!("process-{process}"))
    }

    async fn until(&self, at: u64) {
        sleep(until(second(self.begin, at))).await;
    }

    fn start(&mut self, entry: &str) -> io::Result<()> {
        let strikes: [(u64, u64, &[u32]); 7] = [
            // Not struck: renewed for longer than a session lasts, while the limit changes.
            (GROWN, LONG, &[3]),
            (TOO_SLOW, LONG, &[0, 1]),
            (SWALLOWED, LONG, &[0, 1]),
            (CLIENT_STOPPED, LONG, &[4]),
            (SERVER_STOPPED, LONG, &[2, 5]),
            (SERVER_RESTARTED, LONG, &[2, 5]),
            (KILLED, END - KILLED, &[0, 1, 2]),
        ];
        let begin = self.begin;
        let span = |from, until| (second(begin, from), second(begin, until));
        for (process, proxy) in (0..).zip(&self.proxies) {
            let (struck, others): (Vec<_>, Vec<_>) = strikes
                .iter()
                .partition(|(_, _, processes)| processes.contains(&process));
            let plan = Plan {
                process,
                store: proxy.address(),
                name: NAME.into(),
                limit: LIMIT,
                ttl: self.ttl,
                tasks: TASKS,
                heaviest: HEAVIEST,
                keeps: struck
                    .iter()
                    .map(|(begin, lasts, _)| span(begin - KEPT, begin + lasts))
                    .collect(),
                lingers: others
                    .iter()
                    .map(|(begin, lasts, _)| span(*begin, begin + lasts))
                    .collect(),
                end: second(begin, END),
                history: self.history(process),
            };
            self.processes.push(Some(Process::start(entry, &plan)?));
        }
        Ok(())
    }

    /// Everything that can go wrong, one after the other.
    async fn strike(&mut self, gate: &impl Semaphore) -> io::Result<()> {
        self.until(SCRIPTS_FORGOTTEN).await;
        self.begins("scripts forgotten");
        self.server.forget_scripts()?;
        self.healed("scripts forgotten");

        // All permits are in use all the time.
        self.resize(gate, SHRUNK, 2).await?;
        self.resize(gate, GROWN, 12).await?;
        self.resize(gate, AS_BEFORE, LIMIT).await?;

        self.until(SLOW).await;
        self.begins("slow");
        self.set(&[0, 1, 2], Mode::Delay(self.slow));
        self.until(TOO_SLOW).await;
        // Data on its way arrives before they are gone: it renews their sessions.
        self.set(&[0, 1, 2], Mode::Pass);
        sleep(self.ttl / 20).await;
        self.healed("slow");
        self.gone(&[0, 1], |run| {
            run.set(&[0, 1], Mode::Delay(LIFE * 5 / 4));
            Ok(())
        })
        .await?;
        sleep(Duration::from_secs(LONG)).await;
        self.set(&[0, 1], Mode::Pass);
        // Data on its way still comes late.
        sleep(Duration::from_secs(LONG)).await;
        self.healed("too slow");

        self.until(SWALLOWED).await;
        self.gone(&[0, 1], |run| {
            run.set(&[0, 1], Mode::Blackhole);
            Ok(())
        })
        .await?;
        sleep(Duration::from_secs(LONG)).await;
        self.set(&[0, 1], Mode::Pass);
        self.healed("swallowed");

        self.until(CUT).await;
        self.begins("cut");
        self.set(&[0, 1, 2, 3, 4, 5], Mode::Cut);
        self.until(CUT + 1).await;
        self.set(&[0, 1, 2, 3, 4, 5], Mode::Pass);
        self.healed("cut");

        self.until(REPLIES_LOST).await;
        self.begins("replies lost");
        self.set(&[2, 3], Mode::LoseReplies);
        self.until(REPLIES_LOST + LONG).await;
        self.set(&[2, 3], Mode::Pass);
        self.healed("replies lost");

        self.until(CLIENT_STOPPED).await;
        self.gone(&[4], |run| run.process(4).pause()).await?;
        sleep(Duration::from_secs(LONG)).await;
        self.process(4).resume()?;
        self.healed("client stopped");

        self.until(SERVER_STOPPED).await;
        self.until_held(&[2, 5]).await?;
        self.begins("server stopped");
        self.server.pause()?;
        sleep(Duration::from_secs(LONG)).await;
        self.server.resume()?;
        self.healed("server stopped");

        self.until(SERVER_RESTARTED).await;
        self.until_held(&[2, 5]).await?;
        self.begins("server restarted");
        self.server.kill()?;
        self.server.restart().await?;
        self.healed("server restarted");

        self.until(KILLED).await;
        self.gone(&[0, 1, 2], |run| {
            for process in 0..3 {
                run.process(process).kill()?;
            }
            let (processes, at) = (vec![0, 1, 2], now());
            run.writer.write(&Event::Killed { processes, at });
            Ok(())
        })
        .await
    }

    fn process(&mut self, process: u32) -> &mut Process {
        self.processes[process as usize]
            .as_mut()
            .expect("it runs until the end")
    }

    fn begins(&self, fault: &str) {
        let (fault, at) = (fault.into(), now());
        self.writer.write(&Event::Fault { fault, at });
    }

    fn healed(&self, fault: &str) {
        let (fault, at) = (fault.into(), now());
        self.writer.write(&Event::Healed { fault, at });
    }

    fn set(&self, processes: &[u32], mode: Mode) {
        for &process in processes {
            self.proxies[process as usize].set(mode);
        }
    }

    async fn resize(&mut self, gate: &impl Semaphore, second: u64, limit: u64) -> io::Result<()> {
        self.until(second).await;
        let sent = now();
        gate.set_limit(limit).await.map_err(io::Error::other)?;
        let done = now();
        self.limit = limit;
        let key = 0;
        self.writer.write(&Event::Limit { key, limit, sent, done });
        Ok(())
    }

    /// Waits until these processes hold enough to be missed, which they keep.
    async fn until_held(&self, processes: &[u32]) -> io::Result<()> {
        let begun = now();
        while !self.hold_enough(processes)? {
            if now() - begun > nanos(10 * LIFE) {
                let why = format!("for {:?} the processes {processes:?} did not get enough", 10 * LIFE);
                return Err(io::Error::other(why));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Makes these processes go.
    async fn gone(&mut self, processes: &[u32], strike: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        self.until_held(processes).await?;
        // Departed processes were there the instant before; the strike itself takes a while.
        let at = now();
        strike(self)?;
        let processes = processes.to_vec();
        self.writer.write(&Event::Gone { processes, at });
        Ok(())
    }

    /// Whether these processes hold as much as the heaviest request, together.
    fn hold_enough(&self, processes: &[u32]) -> io::Result<bool> {
        let mut held: HashMap<Ask, u64> = HashMap::new();
        for &process in processes {
            for event in read(&self.history(process)).map_err(io::Error::other)? {
                match event {
                    Event::Granted { ask, weight, .. } => drop(held.insert(ask, weight)),
                    Event::Released { ask, .. } | Event::Lost { ask, .. } => drop(held.remove(&ask)),
                    _ => {}
                }
            }
        }
        let held_of = |key: &u32| {
            held.iter()
                .filter(|(ask, _)| ask.key == *key)
                .map(|(_, weight)| weight)
                .sum::<u64>()
        };
        Ok(self.tried.iter().all(|key| held_of(key) >= HEAVIEST))
    }

    /// Takes every permit, so that none can be missing, lets all processes close, and counts the remaining keys. Returns the
    /// meters that were taken from.
    async fn end<G: Semaphore>(&mut self, gate: &G, tenants: Option<G::Tenants>) -> io::Result<Vec<Meter>> {
        self.until(END).await;
        self.take_all(gate, 0, self.limit).await?;
        gate.close().await;
        for (key, tenant) in tenants.iter().flat_map(Tenants::all) {
            self.take_all(&tenant, key, PERMITS).await?;
        }
        for process in self.processes.iter_mut().skip(3) {
            let process = process.take().expect("it runs until the end");
            // It may wait for its last request.
            let ended = tokio::task::spawn_blocking(|| process.close()).await??;
            if !ended.success() {
                return Err(io::Error::other(format!("a process failed: {ended}")));
            }
        }
        let mut meters = Vec::new();
        for (key, tenant) in tenants.iter().flat_map(Tenants::all) {
            let units = tenant.usage().await.map_err(io::Error::other)?;
            let at = now();
            self.writer.write(&Event::InUse { key, units, at });
            meters.extend(LEGS.map(|leg| Meter::Leg(key, leg)));
        }
        // A store remembers the replies to steps for a while.
        let life = if tenants.is_some() {
            LIFE + self.deletes_within
        } else {
            LIFE
        };
        if let Some(tenants) = tenants {
            tenants.close().await;
        }
        // The survivors delete the state of the dead.
        for (meter, tap) in gate.taps() {
            tap.take().await.map_err(io::Error::other)?;
            tap.close().await;
            meters.push(meter);
        }
        let gone = now() + nanos(life);
        let mut keys = self.server.keys()?;
        while !keys.is_empty() && now() < gone {
            sleep(Duration::from_millis(20)).await;
            keys = self.server.keys()?;
        }
        self.writer.write(&Event::Left {
            keys: keys.len() as u64,
        });
        Ok(meters)
    }

    /// Takes every permit of a tenant, or of the semaphore, and gives them back.
    async fn take_all<G: Gate>(&self, gate: &G, key: u32, weight: u64) -> io::Result<()> {
        let ask = Ask {
            process: DIRECTOR,
            number: 0,
            key,
        };
        let sent = now();
        self.writer.write(&Event::Asked { ask, weight, at: sent });
        let wish = Wish {
            weight,
            tokens: 1,
            at_once: false,
        };
        let all = tokio::time::timeout(3 * LIFE, gate.acquire(wish)).await;
        if let Ok(all) = all {
            let all = all.map_err(io::Error::other)?;
            let received = now();
            let deadline = received + nanos(all.remaining());
            self.writer.write(&Event::Granted {
                ask,
                weight: all.weight(),
                token: all.token(),
                tokens: (1, 1),
                sent,
                received,
                deadline,
            });
            let at = now();
            self.writer.write(&Event::Released { ask, at, deadline });
        }
        Ok(())
    }
}
