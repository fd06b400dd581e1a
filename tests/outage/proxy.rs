//! A wire that can be broken: what clients send goes through; answers are passed, swallowed, or the whole is black.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Pass = 0,
    /// Questions arrive, answers do not: the connection is cut when one comes.
    CutAnswers = 1,
    /// Nothing moves and nothing is closed, as behind a cable that was pulled.
    Black = 2,
    /// New connections are closed at once, old ones cut.
    Refuse = 3,
    /// As [`Mode::CutAnswers`], for one answer: then all pass again.
    CutOnce = 4,
}

pub struct Proxy {
    pub port: u16,
    mode: Arc<AtomicU8>,
    pub cut: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Proxy {
    /// To a port of this machine.
    pub fn to(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = Proxy {
            port: listener.local_addr().expect("bound").port(),
            mode: Arc::default(),
            cut: Arc::default(),
            stop: Arc::default(),
        };
        let (mode, cut, stop) = (proxy.mode.clone(), proxy.cut.clone(), proxy.stop.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if stop.load(Relaxed) {
                    return;
                }
                if mode.load(Relaxed) == Mode::Refuse as u8 {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                for (from, to, answers) in [(&client, &server, false), (&server, &client, true)] {
                    let (from, to) = (from.try_clone().expect("dup"), to.try_clone().expect("dup"));
                    let (mode, cut) = (mode.clone(), cut.clone());
                    std::thread::spawn(move || pump(from, to, answers, &mode, &cut));
                }
            }
        });
        proxy
    }

    pub fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, answers: bool, mode: &AtomicU8, cut: &AtomicU64) {
    let _ = from.set_read_timeout(Some(Duration::from_millis(20)));
    let _ = (from.set_nodelay(true), to.set_nodelay(true));
    let mut buffer = [0; 65536];
    loop {
        let now = mode.load(Relaxed);
        if now == Mode::Black as u8 {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        if now == Mode::Refuse as u8 {
            break;
        }
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                // The mode may have changed while this waited.
                while mode.load(Relaxed) == Mode::Black as u8 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                if answers && mode.load(Relaxed) == Mode::CutAnswers as u8 {
                    cut.fetch_add(1, Relaxed);
                    break;
                }
                let (once, pass) = (Mode::CutOnce as u8, Mode::Pass as u8);
                if answers && mode.compare_exchange(once, pass, Relaxed, Relaxed).is_ok() {
                    cut.fetch_add(1, Relaxed);
                    break;
                }
                if to.write_all(&buffer[..n]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
