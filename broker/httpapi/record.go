package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/brookletmq/brooklet/kafkaproto"
)

// A record as JSON:
//
//	{"offset": 7, "timestamp": 1735689600000, "key": "alice", "value": "hello", "headers": [["trace", "4bf9"]]}
//
// Bytes have one of three names, for keys and for values, and a record has at most one of the three:
//
//	value          text: a string that stands for its UTF-8 bytes, or null
//	value_base64   any bytes: base64 with padding (RFC 4648, section 4)
//	value_json     a JSON value, which stands for its own text without insignificant white space
//
// A reader gets value if the bytes are UTF-8, else value_base64; value_json if it asks for JSON values (values=json) or
// the stream's content type is application/json, and the bytes are JSON. A key is never given as JSON. Absent is null.
//
// A header is an array of its name and its value; each is a string, or {"base64": "..."} if it is not UTF-8, and the
// value may be null. Names may repeat.
//
// The timestamp is in milliseconds since 1970. Writers may leave it out, for the time of the append, or write it as a
// string in the form of RFC 3339. -1 is a record without one. Writers may send offset and stream, so that what was read
// can be appended elsewhere; both are ignored.

// recordIn is a record as writers send it.
type recordIn struct {
	Offset      json.RawMessage `json:"offset"`
	Stream      json.RawMessage `json:"stream"`
	Timestamp   *timestampIn    `json:"timestamp"`
	Key         *string         `json:"key"`
	KeyBase64   *base64In       `json:"key_base64"`
	Value       *string         `json:"value"`
	ValueBase64 *base64In       `json:"value_base64"`
	ValueJSON   json.RawMessage `json:"value_json"`
	Headers     headersIn       `json:"headers"`
}

// maxRecordHeaders bounds the headers of a record that comes as JSON. Decoded they take some ten times their text.
const maxRecordHeaders = 10_000

type headersIn []headerIn

func (h *headersIn) UnmarshalJSON(text []byte) error {
	*h = nil
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	return eachElement(json.NewDecoder(bytes.NewReader(text)), func(d *json.Decoder) error {
		if len(*h) == maxRecordHeaders {
			return fmt.Errorf("it has more than %d headers", maxRecordHeaders)
		}
		var header headerIn
		err := d.Decode(&header)
		*h = append(*h, header)
		return err
	})
}

// eachElement calls fn to decode each element of an array.
func eachElement(d *json.Decoder, fn func(*json.Decoder) error) error {
	if err := wantToken(d, json.Delim('[')); err != nil {
		return err
	}
	for d.More() {
		if err := fn(d); err != nil {
			return err
		}
	}
	return wantToken(d, json.Delim(']'))
}

func wantToken(d *json.Decoder, want json.Token) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = fmt.Errorf("%v at byte %d, want %v", got, d.InputOffset(), want)
	}
	return err
}

// eachRecordIn calls fn with each record of {"records": [...]}, one at a time: an array of records takes far more memory
// than its text.
func eachRecordIn(body []byte, fn func(i int, in *recordIn) error) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := wantToken(d, json.Delim('{')); err != nil {
		return err
	}
	i := 0
	for d.More() {
		if err := wantToken(d, "records"); err != nil {
			return err
		}
		if i > 0 {
			return errors.New("there are two arrays of records")
		}
		err := eachElement(d, func(d *json.Decoder) error {
			var in recordIn
			if err := d.Decode(&in); err != nil {
				return err
			}
			i++
			return fn(i-1, &in)
		})
		if err != nil {
			return err
		}
	}
	if err := wantToken(d, json.Delim('}')); err != nil {
		return err
	}
	return nothingFollows(d, body)
}

type base64In []byte

func (b *base64In) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	data, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil {
		return fmt.Errorf("%q is not base64 with padding: %w", shorten(s), err)
	}
	*b = data
	if data == nil {
		*b = []byte{}
	}
	return nil
}

// timestampIn is in milliseconds since 1970.
type timestampIn int64

func (t *timestampIn) UnmarshalJSON(text []byte) error {
	if len(text) == 0 || text[0] != '"' {
		n, err := strconv.ParseInt(string(text), 10, 64)
		if err != nil || n < -1 {
			return fmt.Errorf("timestamp %s is not a number of milliseconds since 1970", shorten(string(text)))
		}
		*t = timestampIn(n)
		return nil
	}
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || at.UnixMilli() < 0 {
		return fmt.Errorf("timestamp %q is no time in the form of RFC 3339 after 1970, such as 2025-01-31T12:00:00Z", shorten(s))
	}
	*t = timestampIn(at.UnixMilli())
	return nil
}

// headerIn is a header, an array of two.
type headerIn struct{ name, value []byte }

func (h *headerIn) UnmarshalJSON(text []byte) error {
	var pair [3]json.RawMessage // elements that do not fit are dropped
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	var name, value bytesIn
	if pair[1] != nil && pair[2] == nil {
		if err := errors.Join(json.Unmarshal(pair[0], &name), json.Unmarshal(pair[1], &value)); err != nil {
			return err
		}
	}
	if name == nil {
		return fmt.Errorf("header %s is not an array of a name and a value", shorten(string(text)))
	}
	h.name, h.value = name, value
	return nil
}

// bytesIn is a string, null, or {"base64": "..."}.
type bytesIn []byte

func (b *bytesIn) UnmarshalJSON(text []byte) error {
	switch {
	case bytes.Equal(text, []byte("null")):
		return nil
	case text[0] == '"':
		var s string
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		*b = []byte(s)
		return nil
	}
	var object struct {
		Base64 *base64In `json:"base64"`
	}
	if err := strictJSON(text, &object); err != nil || object.Base64 == nil {
		return fmt.Errorf(`%s is neither a string, nor null, nor {"base64": "..."}`, shorten(string(text)))
	}
	*b = bytesIn(*object.Base64)
	return nil
}

// strictJSON decodes one JSON value and nothing else. Fields that are not known are errors: a misspelt one would be
// lost otherwise.
func strictJSON(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	return nothingFollows(d, text)
}

func nothingFollows(d *json.Decoder, text []byte) error {
	if len(bytes.TrimSpace(text[d.InputOffset():])) > 0 {
		return fmt.Errorf("something follows the JSON value at byte %d", d.InputOffset())
	}
	return nil
}

// checkText refuses what the JSON decoder would silently replace: bytes that are not UTF-8, and escapes of half a
// character.
func checkText(text []byte) error {
	if !utf8.Valid(text) {
		return badRequest.new("the body is not UTF-8: send bytes that are not text as base64")
	}
	for {
		i := bytes.IndexByte(text, '\\')
		if i < 0 || i+1 >= len(text) {
			return nil
		}
		text = text[i+1:]
		if text[0] != 'u' {
			text = text[1:]
			continue
		}
		unit, ok := hexUnit(text[1:])
		if !ok {
			return nil // the decoder says it better
		}
		text = text[5:]
		if unit < 0xd800 || unit > 0xdfff {
			continue
		}
		if rest, ok := cutLowSurrogate(text); ok && unit < 0xdc00 {
			text = rest
			continue
		}
		return badRequest.new(`the escape \u%04x is half a character: send bytes that are not text as base64`, unit)
	}
}

// cutLowSurrogate cuts the escape of the second half of a character off text.
func cutLowSurrogate(text []byte) (rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(text, []byte(`\u`))
	if !ok {
		return nil, false
	}
	unit, ok := hexUnit(rest)
	if !ok || unit < 0xdc00 || unit > 0xdfff {
		return nil, false
	}
	return rest[4:], true
}

func hexUnit(text []byte) (unit uint64, ok bool) {
	if len(text) < 4 {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(text[:4]), 16, 16)
	return unit, err == nil
}

// shorten cuts text that is quoted in an error.
func shorten(text string) string {
	const most = 60
	if len(text) <= most {
		return text
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut] + "…"
}

// record makes a record of what a writer sent. now, in milliseconds since 1970, is its timestamp if it has none.
func (in *recordIn) record(now int64) (r kafkaproto.Record, err error) {
	if r.Key, err = oneOf("key", in.Key, in.KeyBase64, nil); err != nil {
		return r, err
	}
	if r.Value, err = oneOf("value", in.Value, in.ValueBase64, in.ValueJSON); err != nil {
		return r, err
	}
	r.Timestamp = now
	if in.Timestamp != nil {
		r.Timestamp = int64(*in.Timestamp)
	}
	for _, h := range in.Headers {
		r.Headers = append(r.Headers, kafkaproto.Header{Key: string(h.name), Value: h.value})
	}
	return r, nil
}

// oneOf returns the bytes of the one of the three fields that is given, nil if none is.
func oneOf(name string, text *string, encoded *base64In, value json.RawMessage) ([]byte, error) {
	given := 0
	var data []byte
	if text != nil {
		given++
		data = []byte(*text)
	}
	if encoded != nil {
		given++
		data = *encoded
	}
	if value != nil {
		given++
		var compact bytes.Buffer
		if err := json.Compact(&compact, value); err != nil {
			return nil, err
		}
		data = compact.Bytes()
	}
	if given > 1 {
		return nil, fmt.Errorf("%[1]s is given more than once: give one of %[1]s, %[1]s_base64 and %[1]s_json", name)
	}
	return data, nil
}

// valueForm says how readers get values.
type valueForm int8

const (
	valuesAuto   valueForm = iota // text, else base64
	valuesBase64                  // always base64
	valuesJSON                    // JSON, else as valuesAuto
)

// ofKeys is the form of keys: never JSON, so that one key looks the same in all records.
func (f valueForm) ofKeys() valueForm {
	if f == valuesJSON {
		return valuesAuto
	}
	return f
}

// appendRecord appends a record as a JSON object. stream, if not empty, is the name of its stream.
func appendRecord(dst []byte, r *kafkaproto.RecordView, stream string, form valueForm) []byte {
	dst = append(dst, '{')
	if stream != "" {
		dst = append(dst, `"stream":`...)
		dst = append(appendString(dst, stream), ',')
	}
	dst = append(dst, `"offset":`...)
	dst = strconv.AppendInt(dst, r.Offset, 10)
	dst = append(dst, `,"timestamp":`...)
	dst = strconv.AppendInt(dst, r.Timestamp, 10)
	dst = appendBytes(append(dst, ','), "key", r.Key, form.ofKeys())
	dst = appendBytes(append(dst, ','), "value", r.Value, form)
	if r.NumHeaders() > 0 {
		dst = append(dst, `,"headers":[`...)
		first := true
		for name, value := range r.Headers() {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = appendHeaderPart(append(dst, '['), name)
			dst = appendHeaderPart(append(dst, ','), value)
			dst = append(dst, ']')
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

// appendBytes appends a member of a JSON object. The name is one that needs no escapes.
func appendBytes(dst []byte, name string, data []byte, form valueForm) []byte {
	dst = append(append(dst, '"'), name...)
	switch {
	case data == nil:
		return append(dst, `":null`...)
	case form == valuesJSON && utf8.Valid(data) && json.Valid(data):
		dst = append(dst, `_json":`...)
		return appendCompact(dst, data)
	case form != valuesBase64 && utf8.Valid(data):
		return appendString(append(dst, `":`...), data)
	}
	return appendBase64(append(dst, `_base64":`...), data)
}

// appendCompact appends JSON on one line.
func appendCompact(dst, data []byte) []byte {
	if bytes.IndexByte(data, '\n') < 0 && bytes.IndexByte(data, '\r') < 0 {
		return append(dst, bytes.TrimSpace(data)...)
	}
	var compact bytes.Buffer
	_ = json.Compact(&compact, data) // it is valid
	return append(dst, compact.Bytes()...)
}

func appendHeaderPart(dst, data []byte) []byte {
	switch {
	case data == nil:
		return append(dst, "null"...)
	case utf8.Valid(data):
		return appendString(dst, data)
	}
	return append(appendBase64(append(dst, `{"base64":`...), data), '}')
}

func appendBase64(dst, data []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, data)
	return append(dst, '"')
}

// appendString appends valid UTF-8 as a JSON string. Line breaks of Unicode are escaped too, for readers that take them
// for the end of a line.
func appendString[T string | []byte](dst []byte, text T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f && c != 0xe2 && c != 0xc2 {
			continue
		}
		escape, width := "", 1
		switch {
		case c == '"' || c == '\\':
			escape = string([]byte{'\\', c})
		case c == '\n':
			escape = `\n`
		case c == '\r':
			escape = `\r`
		case c == '\t':
			escape = `\t`
		case c == 0xe2 && i+2 < len(text) && text[i+1] == 0x80 && (text[i+2] == 0xa8 || text[i+2] == 0xa9):
			escape, width = `\u202`+string(hex[text[i+2]&0xf]), 3
		case c == 0xc2 && i+1 < len(text) && text[i+1] == 0x85:
			escape, width = `\u0085`, 2
		case c < 0x20 || c == 0x7f:
			escape = `\u00` + string([]byte{hex[c>>4], hex[c&0xf]})
		default:
			continue
		}
		dst = append(dst, text[from:i]...)
		dst = append(dst, escape...)
		i += width - 1
		from = i + 1
	}
	dst = append(dst, text[from:]...)
	return append(dst, '"')
}
