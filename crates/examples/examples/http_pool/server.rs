//! A small HTTP server on a local port, that counts what it sees.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Each 97th item is an error of the server, and at each 1,009th it hangs up.
const ERRORS: u32 = 97;
const HANG_UPS: u32 = 1_009;

/// What a server has seen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) requests: u32,
    pub(crate) errors: u32,
    pub hang_ups: u32,
    pub(crate) connections: u32,
    /// The most connections at once.
    pub(crate) peak: usize,
    open: usize,
}

pub(crate) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

impl Server {
    /// Listens on a free port of this machine, until the process ends.
    pub(crate) fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let counts = Arc::clone(&seen);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counts = Arc::clone(&counts);
                note(&counts, |seen| {
                    seen.connections += 1;
                    seen.open += 1;
                    seen.peak = seen.peak.max(seen.open);
                });
                thread::spawn(move || {
                    let served = serve(&stream, &counts);
                    // Before the client learns of it, and may open the next.
                    note(&counts, |seen| seen.open -= 1);
                    let closed = stream.shutdown(Shutdown::Both);
                    drop((served, closed));
                });
            }
        });
        Ok(Self { address, seen })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn seen(&self) -> Seen {
        *self.seen.lock().expect("no panic under the lock")
    }
}

fn note(counts: &Mutex<Seen>, change: impl FnOnce(&mut Seen)) {
    change(&mut counts.lock().expect("no panic under the lock"));
}

/// Answers requests until either side hangs up.
fn serve(stream: &TcpStream, counts: &Mutex<Seen>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    while let Some(item) = read_request(&mut reader)? {
        note(counts, |seen| seen.requests += 1);
        if item % HANG_UPS == HANG_UPS - 1 {
            note(counts, |seen| seen.hang_ups += 1);
            return Ok(());
        }
        let (status, body) = if item % ERRORS == ERRORS - 1 {
            note(counts, |seen| seen.errors += 1);
            ("500 Internal Server Error", String::from("no"))
        } else {
            ("200 OK", format!("item {item}"))
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
        writer.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// The number of the item that is asked for; `None` when the client has hung up.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<u32>> {
    let (mut item, mut line) = (None, String::new());
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let text = line.trim_end();
        if text.is_empty() {
            return item.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into());
        }
        if item.is_none() {
            let path = text.split(' ').nth(1).and_then(|path| path.strip_prefix("/items/"));
            item = path.and_then(|id| id.parse().ok());
        }
    }
}
