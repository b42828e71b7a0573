package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/brookletmq/brooklet/client"
)

// The options are franz-go's: here the address of a broker.
func Example() {
	ctx := context.Background()
	c, err := client.New(kgo.SeedBrokers(exampleAddr))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	for _, event := range []string{"signed in", "opened the cart", "signed out"} {
		if _, err := c.Append(ctx, "sessions/alice", client.Record{Value: []byte(event)}); err != nil {
			log.Fatal(err)
		}
	}
	for r, err := range c.Read(ctx, "sessions/alice", client.At(1)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Offset, string(r.Value))
	}
	// Output:
	// 1 opened the cart
	// 2 signed out
}

// Compare and append: only one of two writers that have seen the same stream writes next.
func ExampleClient_AppendIf() {
	ctx := context.Background()
	c, err := client.New(kgo.SeedBrokers(exampleAddr))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	offset, err := c.AppendIf(ctx, client.NextIs(0), "accounts/7", client.Record{Value: []byte("opened")})
	fmt.Println(offset, err)
	_, err = c.AppendIf(ctx, client.NextIs(0), "accounts/7", client.Record{Value: []byte("opened again")})
	var conflict *client.ConflictError
	if errors.As(err, &conflict) {
		fmt.Println("the next offset is", conflict.Next)
	}
	// Output:
	// 0 <nil>
	// the next offset is 1
}

// Many streams take part in one request, each with a result of its own.
func ExampleClient_AppendBatches() {
	c, err := client.New(kgo.SeedBrokers(exampleAddr))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	for _, r := range c.AppendBatches(context.Background(),
		client.Batch{Stream: "rooms/blue", Records: []client.Record{{Value: []byte("hello")}, {Value: []byte("anybody here?")}}},
		client.Batch{Stream: "rooms/red", Records: []client.Record{{Value: []byte("bye")}}, Close: true},
		client.Batch{Stream: "rooms//", Records: []client.Record{{Value: []byte("lost")}}},
	) {
		fmt.Println(r.Stream, r.First, r.Next, errors.Is(r.Err, client.ErrInvalidName))
	}
	// Output:
	// rooms/blue 0 2 false
	// rooms/red 0 1 false
	// rooms// -1 -1 true
}

// AppendAsync does not wait: the appends of a loop share requests.
func ExampleClient_AppendAsync() {
	ctx := context.Background()
	c, err := client.New(kgo.SeedBrokers(exampleAddr))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	for i := range 1000 {
		batch := client.Batch{Stream: fmt.Sprintf("devices/%d", i%100), Records: []client.Record{{Value: []byte("tick")}}}
		if err := c.AppendAsync(ctx, batch, func(r client.Result) {
			if r.Err != nil {
				log.Print(r.Err)
			}
		}); err != nil {
			log.Fatal(err)
		}
	}
	if err := c.Flush(ctx); err != nil {
		log.Fatal(err)
	}
	info, err := c.Describe(ctx, "devices/7")
	fmt.Println(info.Next, err)
	// Output: 10 <nil>
}

// A follower waits for a stream that does not exist yet.
func ExampleClient_Follow() {
	ctx := context.Background()
	c, err := client.New(kgo.SeedBrokers(exampleAddr))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	time.AfterFunc(10*time.Millisecond, func() {
		_, _ = c.Append(ctx, "jobs/42", client.Record{Value: []byte("started")}, client.Record{Value: []byte("done")})
	})
	for r, err := range c.Follow(ctx, "jobs/42", client.Start()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(r.Value))
		if string(r.Value) == "done" {
			break
		}
	}
	// Output:
	// started
	// done
}

// The cursor is stored with what was done, and resumes behind it.
func ExampleClient_FollowPrefix() {
	ctx := context.Background()
	c, err := client.New(kgo.SeedBrokers(exampleAddr))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	for _, event := range []string{"first", "second"} {
		if _, err := c.Append(ctx, "agents/1/log", client.Record{Value: []byte(event)}); err != nil {
			log.Fatal(err)
		}
	}

	var stored []byte
	for range 2 {
		var cursor client.Cursor
		if stored != nil {
			if err := cursor.UnmarshalText(stored); err != nil {
				log.Fatal(err)
			}
		}
		for r, err := range c.FollowPrefix(ctx, "agents/", &cursor) {
			if err != nil {
				log.Fatal(err)
			}
			fmt.Println(r.Stream, string(r.Value))
			if stored, err = cursor.MarshalText(); err != nil {
				log.Fatal(err)
			}
			break // the program ends here
		}
	}
	// Output:
	// agents/1/log first
	// agents/1/log second
}

func ExampleClient_List() {
	ctx := context.Background()
	c, err := client.New(kgo.SeedBrokers(exampleAddr))
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	if err := c.Create(ctx, "files/a", client.TTL(24*time.Hour), client.ContentType("text/csv")); err != nil {
		log.Fatal(err)
	}
	if _, err := c.Append(ctx, "files/b", client.Record{Value: []byte("1,2,3")}); err != nil {
		log.Fatal(err)
	}
	for info, err := range c.List(ctx, "files/", "") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(info.Stream, info.Next, info.ContentType)
	}
	// Output:
	// files/a 0 text/csv
	// files/b 1
}
