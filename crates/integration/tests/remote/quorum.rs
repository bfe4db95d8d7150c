//! Three servers of one store on loopback, of which one leads, and may be killed.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How one of the three is started.
pub(crate) trait Member {
    /// Starts the `nth`, which may write into `folder`.
    fn command(&self, nth: usize, all: &[Ports; 3], folder: &Path) -> Command;

    /// Whether the one there leads; an error while it knows of no leader.
    fn leads(&self, address: SocketAddr) -> io::Result<bool>;
}

/// The ports of one server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    /// For clients.
    pub(crate) client: u16,
    /// For the others.
    pub(crate) peer: u16,
    /// For what else they have to tell each other.
    pub(crate) other: u16,
}

/// Nine free ports. All are taken at once, so that none is there twice, and given up.
fn free_ports() -> io::Result<Vec<u16>> {
    let taken = (0..9).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let taken: Vec<_> = taken.collect::<Result<_, _>>()?;
    taken.iter().map(|socket| Ok(socket.local_addr()?.port())).collect()
}

/// Servers that run.
pub(crate) struct Quorum<M> {
    member: M,
    ports: [Ports; 3],
    children: [Option<Child>; 3],
    folder: TempDir,
}

impl<M: Member> Quorum<M> {
    /// Starts the three, and waits until one leads and the others follow.
    pub(crate) async fn start(member: impl Fn() -> M) -> Self {
        let mut said = String::new();
        // Another process may take a port before a server does: then others are tried.
        for _ in 0..4 {
            match Self::try_start(member()).await.expect("servers are started") {
                Ok(quorum) => return quorum,
                Err(ended) => said = ended,
            }
        }
        panic!("three servers do not agree on who leads: {said}");
    }

    /// What they said, when one of them has ended, or they do not agree.
    async fn try_start(member: M) -> io::Result<Result<Self, String>> {
        let folder = tempfile::tempdir()?;
        let free = free_ports()?;
        let ports = [0, 1, 2].map(|nth| Ports {
            client: free[nth],
            peer: free[nth + 3],
            other: free[nth + 6],
        });
        let children = [None, None, None];
        let mut quorum = Self {
            member,
            ports,
            children,
            folder,
        };
        for nth in 0..3 {
            let folder = quorum.folder.path().join(nth.to_string());
            std::fs::create_dir(&folder)?;
            let log = std::fs::File::create(folder.join("server.log"))?;
            let mut command = quorum.member.command(nth, &ports, &folder);
            let started = command
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn()?;
            quorum.children[nth] = Some(started);
        }
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            if quorum
                .children
                .iter_mut()
                .flatten()
                .any(|child| child.try_wait().is_ok_and(|ended| ended.is_some()))
            {
                break;
            }
            if quorum.leader().is_some() {
                return Ok(Ok(quorum));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let log = |nth: usize| std::fs::read_to_string(quorum.folder.path().join(format!("{nth}/server.log")));
        Ok(Err(format!("{}\n{}\n{}", log(0)?, log(1)?, log(2)?)))
    }

    pub(crate) fn address(&self, nth: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[nth].client).into()
    }

    /// The leader of all remaining servers, if they agree.
    pub(crate) fn leader(&self) -> Option<usize> {
        let left = (0..3).filter(|&nth| self.children[nth].is_some());
        let leads: io::Result<Vec<_>> = left
            .map(|nth| Ok((nth, self.member.leads(self.address(nth))?)))
            .collect();
        let leads = leads.ok()?;
        let mut leaders = leads.iter().filter(|(_, leads)| *leads);
        let first = leaders.next()?;
        leaders.next().is_none().then_some(first.0)
    }

    /// Ends one, with all its connections.
    pub(crate) fn kill(&mut self, nth: usize) {
        if let Some(mut child) = self.children[nth].take() {
            child.kill().and_then(|()| child.wait()).expect("it is a child of ours");
        }
    }
}

impl<M> Drop for Quorum<M> {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
