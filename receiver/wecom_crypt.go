package receiver

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha1" // #nosec G505 -- WeCom prescribes it
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
)

// wecomBlock is the block that WeCom pads to: twice that of AES.
const wecomBlock = 32

// wecomKey is a decoded EncodingAESKey.
type wecomKey struct {
	block cipher.Block
	iv    []byte
}

var encodingAESKey = regexp.MustCompile(`^[A-Za-z0-9]{43}$`)

// newWecomKey decodes an EncodingAESKey. 43 characters are 258 bits: the last
// two are free and not zero in most keys, so decoding must not be strict.
func newWecomKey(encoded string) (wecomKey, error) {
	if !encodingAESKey.MatchString(encoded) {
		return wecomKey{}, fmt.Errorf("decode key: not 43 of A-Z a-z 0-9 (it has %d characters)", len(encoded))
	}
	raw, err := base64.StdEncoding.DecodeString(encoded + "=")
	if err != nil {
		return wecomKey{}, fmt.Errorf("decode key: %w", err)
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return wecomKey{}, fmt.Errorf("decode key: %w", err)
	}
	return wecomKey{block: block, iv: raw[:aes.BlockSize]}, nil
}

// wecomSignature is the hex SHA-1 of the four values, sorted and joined. Nothing
// separates them, so an observer can move digits between timestamp and nonce:
// neither is identity or proof of age.
func wecomSignature(token, timestamp, nonce string, encrypt []byte) [2 * sha1.Size]byte {
	parts := [4][]byte{[]byte(token), []byte(timestamp), []byte(nonce), encrypt}
	slices.SortFunc(parts[:], bytes.Compare)
	h := sha1.New() // #nosec G401 -- WeCom prescribes it
	for _, p := range parts {
		h.Write(p)
	}
	var out [2 * sha1.Size]byte
	var sum [sha1.Size]byte
	hex.Encode(out[:], h.Sum(sum[:0]))
	return out
}

// verifyWecom gives the index of the token that made signature, in constant
// time for each.
func verifyWecom(tokens []string, signature, timestamp, nonce string, encrypt []byte) (int, error) {
	for i, token := range tokens {
		want := wecomSignature(token, timestamp, nonce, encrypt)
		if subtle.ConstantTimeCompare(want[:], []byte(signature)) == 1 {
			return i, nil
		}
	}
	return 0, unauthentic("check signature")
}

// decrypt opens a frame: random(16), length of the message (4), message,
// receive id, padding (1 to 32). The message is a piece of a fresh buffer.
func (k wecomKey) decrypt(encrypt []byte) (message, receiveID []byte, err error) {
	// Strict decoding still skips line ends, which no canonical form has.
	if len(encrypt) == 0 || bytes.IndexByte(encrypt, '\n') >= 0 || bytes.IndexByte(encrypt, '\r') >= 0 {
		return nil, nil, malformed("decrypt: base64")
	}
	enc := base64.StdEncoding.Strict()
	frame := make([]byte, enc.DecodedLen(len(encrypt)))
	n, err := enc.Decode(frame, encrypt)
	if err != nil {
		return nil, nil, malformed("decrypt: base64")
	}
	frame = frame[:n]
	if n == 0 || n%wecomBlock != 0 {
		return nil, nil, malformed("decrypt: length of ciphertext")
	}
	cipher.NewCBCDecrypter(k.block, k.iv).CryptBlocks(frame, frame)

	pad := int(frame[n-1])
	if pad < 1 || pad > wecomBlock {
		return nil, nil, malformed("decrypt: padding")
	}
	for _, b := range frame[n-pad:] {
		if int(b) != pad {
			return nil, nil, malformed("decrypt: padding")
		}
	}
	frame = frame[:n-pad]
	if len(frame) < 20 {
		return nil, nil, malformed("decrypt: frame too short")
	}
	// Subtract: 20 + length can overflow.
	length := binary.BigEndian.Uint32(frame[16:20])
	if uint64(length) > uint64(len(frame)-20) {
		return nil, nil, malformed("decrypt: length of message")
	}
	return frame[20 : 20+length], frame[20+length:], nil
}

// encrypt is the inverse of decrypt. random has 16 bytes, fresh for each frame.
func (k wecomKey) encrypt(random, message []byte, receiveID string) string {
	frame := make([]byte, 0, len(random)+4+len(message)+len(receiveID)+wecomBlock)
	frame = append(frame, random...)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(message))) // #nosec G115 -- payloads are far below 4 GiB
	frame = append(frame, message...)
	frame = append(frame, receiveID...)
	pad := wecomBlock - len(frame)%wecomBlock
	frame = append(frame, bytes.Repeat([]byte{byte(pad)}, pad)...)
	cipher.NewCBCEncrypter(k.block, k.iv).CryptBlocks(frame, frame)
	return base64.StdEncoding.EncodeToString(frame)
}
