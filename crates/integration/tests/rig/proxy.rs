//! A hop between clients and a server that can be told to misbehave.
//!
//! Bytes that were swallowed are never made up for: a connection that lost some is reset when it would pass others again, as a
//! partition of a real network ends. So no answer is ever taken for that of another request.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

/// What the proxy does with what comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Passes everything on, both ways, at once.
    Pass,
    /// Passes everything on, both ways, so much later.
    Delay(Duration),
    /// Keeps connections open, takes new ones, and swallows everything.
    Blackhole,
    /// Resets connections, and new ones as they come.
    Cut,
    /// Passes requests on and swallows the replies: their outcome stays unknown.
    LoseReplies,
}

/// One proxy before one server. Its connections end when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<Mode>,
    /// Where new connections lead.
    server: Arc<Mutex<SocketAddr>>,
    counts: Counts,
    listening: AbortHandle,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    /// How often each connection, in the order in which they came, was asked something after it had answered.
    exchanges: Arc<Mutex<Vec<Arc<AtomicU64>>>>,
    swallowed: Arc<AtomicU64>,
}

impl Proxy {
    /// Listens on a free port of loopback, and passes everything on to `server`.
    pub(crate) async fn before(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (mode, modes) = watch::channel(Mode::Pass);
        let counts = Counts::default();
        let server = Arc::new(Mutex::new(server));
        let listening = tokio::spawn(listen(listener, Arc::clone(&server), modes, counts.clone())).abort_handle();
        Ok(Self {
            address,
            mode,
            server,
            counts,
            listening,
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells every connection, and those to come, to go on in this mode: whatever is sent from now on meets it.
    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// New connections lead to this server; those that there are go on as they are.
    pub(crate) fn lead_to(&self, server: SocketAddr) {
        *self.server.lock().unwrap() = server;
    }

    /// Round trips of each connection so far. A request that is sent while another is on its way counts with that one.
    pub(crate) fn exchanges(&self) -> Vec<u64> {
        let exchanges = self.counts.exchanges.lock().unwrap();
        exchanges.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// The bytes that were swallowed so far.
    pub(crate) fn swallowed(&self) -> u64 {
        self.counts.swallowed.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn listen(listener: TcpListener, server: Arc<Mutex<SocketAddr>>, modes: watch::Receiver<Mode>, counts: Counts) {
    // They end with this task.
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let state = State {
            swallowed: AtomicU64::new(0),
            swallowed_by_all: Arc::clone(&counts.swallowed),
            asking: AtomicBool::new(false),
            exchanges: Arc::new(AtomicU64::new(0)),
        };
        counts.exchanges.lock().unwrap().push(Arc::clone(&state.exchanges));
        let server = *server.lock().unwrap();
        connections.spawn(connection(client, server, modes.clone(), state));
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(mut client: TcpStream, server: SocketAddr, modes: watch::Receiver<Mode>, state: State) {
    if *modes.borrow() != Mode::Cut
        && let Ok(mut server) = TcpStream::connect(server).await
    {
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::select! {
            () = pump(Way::There, from_client, to_server, modes.clone(), &state) => {}
            () = pump(Way::Back, from_server, to_client, modes, &state) => {}
        }
        reset(&server);
    }
    reset(&client);
}

/// What is on its way is lost, and the peer is told so by a reset.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

/// What both ways of a connection know. One task looks after both, and who reads the counts has seen what they count:
/// Relaxed is enough everywhere.
struct State {
    /// The bytes that this connection, and that all of them, swallowed.
    swallowed: AtomicU64,
    swallowed_by_all: Arc<AtomicU64>,
    asking: AtomicBool,
    exchanges: Arc<AtomicU64>,
}

impl State {
    fn swallow(&self, bytes: usize) {
        self.swallowed.fetch_add(bytes as u64, Ordering::Relaxed);
        self.swallowed_by_all.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn has_swallowed(&self) -> bool {
        self.swallowed.load(Ordering::Relaxed) > 0
    }

    fn passed(&self, way: Way) {
        if way == Way::Back {
            self.asking.store(false, Ordering::Relaxed);
        } else if !self.asking.swap(true, Ordering::Relaxed) {
            self.exchanges.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// How much later bytes are passed on this way; `None` when they are swallowed.
fn delay(mode: Mode, way: Way) -> Option<Duration> {
    match mode {
        Mode::Pass => Some(Duration::ZERO),
        Mode::Delay(delay) => Some(delay),
        Mode::LoseReplies if way == Way::There => Some(Duration::ZERO),
        Mode::LoseReplies | Mode::Blackhole | Mode::Cut => None,
    }
}

/// Moves bytes one way until an end closes, the mode is a cut, or bytes would have to pass after others were swallowed.
async fn pump(
    way: Way,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut modes: watch::Receiver<Mode>,
    state: &State,
) {
    let mut buffer = vec![0; 64 * 1024];
    let mut late: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    loop {
        let mode = *modes.borrow_and_update();
        if delay(mode, way).is_none() {
            state.swallow(late.drain(..).map(|(_, bytes)| bytes.len()).sum());
        }
        // Requests of a connection whose replies are lost go on being passed.
        if mode == Mode::Cut || state.has_swallowed() && !matches!(mode, Mode::Blackhole | Mode::LoseReplies) {
            return;
        }
        let due = late.front().map(|&(due, _)| due);
        tokio::select! {
            // What is due goes before what comes in.
            biased;
            changed = modes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = async { tokio::time::sleep_until(due.expect("something is late")).await }, if due.is_some() => {
                let (_, bytes) = late.pop_front().expect("something is late");
                if to.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            read = from.read(&mut buffer) => {
                let Ok(read @ 1..) = read else { return };
                // The mode of now: it may have been set since, and before these bytes were sent.
                match delay(*modes.borrow(), way) {
                    None => state.swallow(read),
                    Some(delay) => {
                        state.passed(way);
                        late.push_back((Instant::now() + delay, buffer[..read].to_vec()));
                    }
                }
            }
        }
    }
}
