//! Strict netlink attributes: unknown ones are errors.

/// `NLA_TYPE_MASK`: the two highest bits of a type are flags.
const TYPE_MASK: u16 = 0x3fff;

/// Description of unsupported content.
pub(crate) type UnsupportedContent = String;

/// Returns the attributes of a payload, in order.
pub(crate) fn each(payload: &[u8]) -> Result<Vec<(u16, &[u8])>, UnsupportedContent> {
    let mut all = Vec::new();
    let mut rest = payload;
    while !rest.is_empty() {
        let cut = || format!("attribute {} is truncated", all.len());
        let header = rest.first_chunk::<4>().ok_or_else(cut)?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let value = rest.get(4..length).ok_or_else(cut)?;
        all.push((u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK, value));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(all)
}

/// Attributes by their type.
pub(crate) struct Fields<'a>([Option<&'a [u8]>; 24]);

impl<'a> Fields<'a> {
    /// Parses a payload. Fails on unknown types and on duplicates.
    pub(crate) fn new(payload: &'a [u8], known: &[u16]) -> Result<Fields<'a>, UnsupportedContent> {
        let mut fields = [None; 24];
        for (kind, value) in each(payload)? {
            let field = fields.get_mut(usize::from(kind)).filter(|_| known.contains(&kind));
            let field = field.ok_or_else(|| format!("unknown attribute {kind}"))?;
            // Which of two attributes the kernel uses is unknown.
            if field.replace(value).is_some() {
                return Err(format!("duplicate attribute {kind}"));
            }
        }
        Ok(Fields(fields))
    }

    pub(crate) fn get(&self, kind: u16) -> Option<&'a [u8]> {
        self.0.get(usize::from(kind)).copied().flatten()
    }

    pub(crate) fn need(&self, kind: u16) -> Result<&'a [u8], UnsupportedContent> {
        self.get(kind).ok_or_else(|| format!("missing attribute {kind}"))
    }

    /// Returns a big-endian number.
    pub(crate) fn number(&self, kind: u16) -> Result<Option<u32>, UnsupportedContent> {
        self.get(kind)
            .map(|value| {
                let bytes =
                    value.try_into().map_err(|_| format!("attribute {kind} is not a u32"))?;
                Ok(u32::from_be_bytes(bytes))
            })
            .transpose()
    }

    pub(crate) fn need_number(&self, kind: u16) -> Result<u32, UnsupportedContent> {
        self.number(kind)?.ok_or_else(|| format!("missing attribute {kind}"))
    }

    pub(crate) fn text(&self, kind: u16) -> String {
        self.get(kind).map(text).unwrap_or_default()
    }
}

/// Decodes a zero-terminated string.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}
