//! The console of a guest, kept for error messages.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Result;

/// Bytes of a console to keep, and lines of it to report.
const CONSOLE_BYTES: usize = 8 * 1024;
const CONSOLE_LINES: usize = 5;

/// The last bytes of a guest's console. Its output is unbounded.
pub(super) struct Console {
    kept: Arc<Mutex<Vec<u8>>>,
}

impl Console {
    pub fn follow(mut stream: UnixStream) -> Result<Console> {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keeping = Arc::clone(&kept);
        let thread = std::thread::Builder::new().name("console".into()).spawn(move || {
            let mut buffer = [0; 4096];
            // Ends with QEMU, which ends with its process tree.
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                let mut kept = keeping.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..length]);
                // Keep only the end: a guest may print without limit.
                let surplus = kept.len().saturating_sub(CONSOLE_BYTES);
                kept.drain(..surplus);
            }
        });
        thread.map_err(|e| sys::Error::io("clone", "thread of a console", &e))?;
        Ok(Console { kept })
    }

    /// Returns its last lines as the end of a message; empty if it printed nothing.
    pub fn words(&self) -> String {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = kept.split(|byte| *byte == b'\n').map(words);
        let lines: Vec<String> = lines.filter(|line| !line.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(CONSOLE_LINES)..];
        if last.is_empty() { String::new() } else { format!("; console: {}", last.join(" | ")) }
    }
}

/// Returns text from a guest without control characters, cut to 200 characters.
pub(super) fn words(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    text.trim().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_that_floods_is_kept_in_bounds() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let console = Console::follow(ours).unwrap();
        let mut flood = vec![b'x'; 1 << 20];
        flood.extend_from_slice(b"\none\r\n\x1b[2Jtwo\n");
        std::io::Write::write_all(&mut theirs, &flood).unwrap();
        while !console.words().contains("two") {
            std::thread::yield_now();
        }
        assert!(console.kept.lock().unwrap().len() <= CONSOLE_BYTES);
        let said = console.words();
        assert!(said.ends_with("| one | [2Jtwo") && said.len() < 300, "{said}");
    }
}
