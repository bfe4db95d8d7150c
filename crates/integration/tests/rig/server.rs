//! A server of the rig's own, on a free port of loopback, in a temporary folder, which ends with it.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How a store is started, and its administration beside its clients.
pub(crate) trait Store: Clone {
    /// Starts the server on this port of loopback, without data; it may write into `folder`.
    fn command(&self, port: u16, folder: &Path) -> Command;

    /// The process `pid` serves at this address. Answers soon, also when it does not.
    fn ready(&self, address: SocketAddr, pid: u32) -> bool;

    /// The keys in it.
    fn keys(&self, address: SocketAddr) -> io::Result<Vec<String>>;

    /// The longest life of a session without a renewal, in times to live.
    fn lives(&self) -> u32 {
        1
    }

    /// How much later it may end, where a store checks only now and then.
    fn late(&self) -> Duration {
        Duration::ZERO
    }

    /// How long it may keep a key of which nothing is left but replies, each remembered for `remembered`.
    fn deletes_within(&self, remembered: Duration) -> Duration {
        remembered
    }

    /// It loses its data when it is killed.
    fn forgets(&self) -> bool {
        false
    }

    /// The round trips of a sync.
    fn trips(&self) -> u32 {
        1
    }

    /// The processes of a server besides `pid`.
    fn children(&self, pid: u32) -> Vec<u32> {
        let _ = pid;
        Vec::new()
    }

    /// Makes it forget its scripts, if it has any.
    fn forget_scripts(&self, address: SocketAddr) -> io::Result<()> {
        let _ = address;
        Ok(())
    }
}

/// A server that runs, or was stopped, or killed.
#[derive(Debug)]
pub(crate) struct Server<S> {
    store: S,
    port: u16,
    folder: TempDir,
    child: Child,
}

impl<S: Store> Server<S> {
    /// Starts a server and waits until it is ready.
    ///
    /// # Errors
    ///
    /// When it does not start, or is not ready within ten seconds: with its output.
    pub(crate) async fn start(store: S) -> io::Result<Self> {
        let mut tries = 0;
        loop {
            let folder = tempfile::tempdir()?;
            // Another process may take it before the server does: then another one is tried.
            let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
            let mut server = Self {
                store: store.clone(),
                port,
                child: spawn(&store, port, folder.path())?,
                folder,
            };
            match server.until_ready().await {
                Ok(()) => return Ok(server),
                Err(error) if tries == 4 => return Err(error),
                Err(_) => tries += 1,
            }
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The keys in it.
    pub(crate) fn keys(&self) -> io::Result<Vec<String>> {
        self.store.keys(self.address())
    }

    /// Makes it forget its scripts.
    pub(crate) fn forget_scripts(&self) -> io::Result<()> {
        self.store.forget_scripts(self.address())
    }

    /// Stops it where it is: connections stay open, and are not answered.
    pub(crate) fn pause(&self) -> io::Result<()> {
        stop(&self.child)?;
        self.signal_children(Signal::STOP)
    }

    /// Goes on from where it was.
    pub(crate) fn resume(&self) -> io::Result<()> {
        self.signal_children(Signal::CONT)?;
        go_on(&self.child)
    }

    /// Ends it at once, with its data.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        // It starts no others meanwhile.
        stop(&self.child)?;
        self.signal_children(Signal::KILL)?;
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    fn signal_children(&self, signal: Signal) -> io::Result<()> {
        for pid in self.store.children(self.child.id()) {
            match kill_process(Pid::from_raw(pid as i32).expect("a process"), signal) {
                // It has ended by itself.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Starts it again after a kill, at the same address: without data, unless it keeps them.
    pub(crate) async fn restart(&mut self) -> io::Result<()> {
        self.child = spawn(&self.store, self.port, self.folder.path())?;
        self.until_ready().await
    }

    async fn until_ready(&mut self) -> io::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            if self.child.try_wait()?.is_some() {
                break;
            }
            if self.store.ready(self.address(), self.child.id()) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let log = std::fs::read_to_string(log(self.folder.path()))?;
        Err(io::Error::other(format!("the server did not start:\n{log}")))
    }
}

impl<S> Drop for Server<S> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log(folder: &Path) -> std::path::PathBuf {
    folder.join("server.log")
}

fn spawn(store: &impl Store, port: u16, folder: &Path) -> io::Result<Child> {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(log(folder))?;
    store
        .command(port, folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

/// Stops this child, and waits until it has stopped.
pub(super) fn stop(child: &Child) -> io::Result<()> {
    kill_process(Pid::from_child(child), Signal::STOP)?;
    // Leaves the exit status to the waiter for the child.
    let either = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(child)), either)?;
    Ok(())
}

/// Lets it go on.
pub(super) fn go_on(child: &Child) -> io::Result<()> {
    Ok(kill_process(Pid::from_child(child), Signal::CONT)?)
}
